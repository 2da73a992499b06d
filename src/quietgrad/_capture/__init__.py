"""What every layer saw and what came back: the parts of which per-sample gradients are made."""

from quietgrad._capture.adapter import Adapter, inputs_for
from quietgrad._capture.registry import ADAPTERS

__all__ = ["ADAPTERS", "Adapter", "inputs_for"]
