"""Deprecated path of 0.2; it leaves in 0.4. Import the names from `quietgrad`."""

from __future__ import annotations

import warnings

from quietgrad._program.statistics import Mean, SecondMoments, Statistic

__all__ = ["Mean", "SecondMoments", "Statistic"]

warnings.warn(
    "quietgrad.program is deprecated and leaves in 0.4. Use qg.Statistic, qg.Mean and qg.SecondMoments.",
    DeprecationWarning,
    stacklevel=2,
)
