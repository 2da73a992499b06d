"""Which δ means something: the probability of having no guarantee at all, for every record."""

from __future__ import annotations

import warnings

LARGEST = 0.1
"""From here on one record in ten may be published as it is."""


def check_delta(delta: float) -> None:
    """Refuse a δ that means nothing.

    Raises:
        ValueError: δ is not in (0, 0.1).
    """
    if not 0 < delta < LARGEST:
        raise ValueError(
            f"Expected delta in (0, {LARGEST}), got {delta}. It bounds the chance that a record has no protection at "
            "all: choose it well below 1 / records, e.g. 1e-5."
        )


def warn_delta(delta: float, records: int) -> None:
    """Warn where publishing one whole record would be within δ."""
    if 1 / records <= delta < LARGEST:
        warnings.warn(
            f"delta={delta:g} is not below 1 / records = {1 / records:.2g}: publishing one record at random would be "
            "within it. Choose delta well below, and calibrate anew.",
            UserWarning,
            stacklevel=3,
        )
