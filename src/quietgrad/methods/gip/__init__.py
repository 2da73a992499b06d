"""Gradient index pruning: noisy indices and the values at them."""
