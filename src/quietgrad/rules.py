"""Rules of thumb that papers measured, as functions."""

from __future__ import annotations


def clip_for_momentum(clip: float, momentum: float, *, new_momentum: float = 0.0) -> float:
    """The clip bound that keeps C/(1 − μ) when the momentum changes (Random Freeze, section 3.4).

    Momentum adds past noise up to 1/(1 − μ) times its length, so that settings of equal C/(1 − μ) reach similar
    accuracy with everything else fixed; of these, the paper found (C=1, μ=0) better than (C=0.1, μ=0.9).

    Args:
        clip: C of the known setting.
        momentum: μ of the known setting.
        new_momentum: μ to go to.

    Raises:
        ValueError: the clip is not positive, or a momentum not in [0, 1).
    """
    if not clip > 0:
        raise ValueError(f"Expected clip > 0, got {clip}. It is the largest norm one sample may have.")
    for name, value in (("momentum", momentum), ("new_momentum", new_momentum)):
        if not 0 <= value < 1:
            raise ValueError(f"Expected {name} in [0, 1), got {value}.")
    return clip * (1 - new_momentum) / (1 - momentum)
