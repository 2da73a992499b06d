"""Deprecated path of 0.2; it leaves in 0.4. Import the names from `quietgrad`."""

from __future__ import annotations

import warnings

from quietgrad._capture import ADAPTERS, Adapter, inputs_for

__all__ = ["ADAPTERS", "Adapter", "inputs_for"]

warnings.warn(
    "quietgrad.capture is deprecated and leaves in 0.4. Use qg.Adapter, qg.inputs_for and qg.register_adapter.",
    DeprecationWarning,
    stacklevel=2,
)
