"""DataLens (Wang et al. 2021), "Scalable privacy preserving training via gradient compression and aggregation".

    g̃ = (Σ_i clip_C(sign(top_k(g_i))) + σC·z) / qN

The gradient compression of DataLens as an ordinary private step: each sample keeps its own k largest coordinates (their
signs), noise goes to all p coordinates because the choice is private. Here as the baseline of the GIP paper.

Formal guarantee: top-k and sign map each sample on its own, before the clip. One release of sensitivity C with noise
σC: a Poisson-subsampled Gaussian mechanism of multiplier σ.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from quietgrad._mechanism.clipping import Clip, FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.masks.top_k import TopK
from quietgrad.schedules import Schedule


def datalens(*, keep: float = 0.8, sign: bool = True, clip: float | Schedule | Clip = 1.0) -> Mechanism:
    """Per-sample top-k and sign, then clip, noise in full dimension.

    Args:
        keep: the part of each sample's gradient that is kept (the GIP paper: 0.8).
        sign: keep signs instead of values; the norm of a kept gradient is then √k.
        clip: C for a flat clip, or another clip.
    """
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    return Mechanism(name="datalens", releases=(Release(representation=TopK(keep, sign), clip=rule),))
