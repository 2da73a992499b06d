"""Gradient index pruning: noisy indices and the values at them."""

from quietgrad.methods.gip.mallows_event import MallowsSelection

__all__ = ["MallowsSelection"]
