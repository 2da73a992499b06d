"""DP-SGD (Abadi et al. 2016), the baseline; "GP" in the papers.

    g̃ = (Σ_i clip_C(g_i) + σC·z) / qN

Formal guarantee: one release of sensitivity C with noise σC, so each step is a Poisson-subsampled Gaussian mechanism
of multiplier σ.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from quietgrad._mechanism.clipping import Clip, FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.base import Identity
from quietgrad.schedules import Schedule


def dp_sgd(*, clip: float | Schedule | Clip = 1.0) -> Mechanism:
    """The whole gradient, clipped per sample, with noise on every coordinate.

    Args:
        clip: C for a flat clip, or a `PerGroupClip`, an `AutomaticClip`.
    """
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    return Mechanism(name="dp_sgd", releases=(Release(representation=Identity(), clip=rule),))
