"""Deprecated path of 0.2; it leaves in 0.4. Import the names from `quietgrad`."""

from __future__ import annotations

import warnings

from quietgrad._gradients import (
    BlockGrads,
    BlockwiseGrads,
    ClippedSum,
    DenseGrad,
    FactoredGrad,
    PerSampleGrads,
    Released,
)

__all__ = [
    "BlockGrads",
    "BlockwiseGrads",
    "ClippedSum",
    "DenseGrad",
    "FactoredGrad",
    "PerSampleGrads",
    "Released",
]

warnings.warn(
    "quietgrad.gradients is deprecated and leaves in 0.4. Use qg.DenseGrad, qg.FactoredGrad and so on.",
    DeprecationWarning,
    stacklevel=2,
)
