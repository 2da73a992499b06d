"""Law 0: the noise that was added is the noise that was accounted for.

A Gaussian release of sensitivity S and noise of std s has the precision (S/s)². Precisions of several releases of one
draw add up, and a draw whose precisions sum to P costs what one Gaussian of multiplier P^(−1/2) costs.
"""

from __future__ import annotations

import math

from quietgrad.accounting.base import Event, gaussian_precision

TOLERANCE = 1e-9
"""Relative error that adding up float64 precisions may leave; noise that is wrong is wrong by far more."""


def gaussian_multiplier(event: Event) -> float:
    """Return σ of the Gaussian part of an event.

    Raises:
        RuntimeError: the event has no Gaussian part, so no noise can belong to it.
    """
    precision = gaussian_precision(event)
    if precision == 0.0:
        raise RuntimeError(f"{event} accounts for no Gaussian noise: this is a bug.")
    return float(precision**-0.5)


def precision_of(sensitivity: float, std: float) -> float:
    """Return (S/s)², infinite without noise."""
    return (sensitivity / std) ** 2 if std > 0 else math.inf


def check_at_most(precision: float, accounted: float) -> None:
    """Refuse to release more than is accounted for.

    Raises:
        RuntimeError: the precision is larger.
    """
    if precision > accounted and not math.isclose(precision, accounted, rel_tol=TOLERANCE):
        raise RuntimeError(
            f"Released precision {precision} exceeds the accounted {accounted}: this is a bug."
        )


def check_conservation(precision: float, accounted: float) -> None:
    """Require that exactly what is accounted for was released.

    Raises:
        RuntimeError: the precisions differ.
    """
    if not math.isclose(precision, accounted, rel_tol=TOLERANCE):
        raise RuntimeError(
            f"Released precision {precision} differs from the accounted {accounted}: this is a bug."
        )
