"""Random Freeze, "Differentially private SGD with sparse gradients", and its two variants.

    random:     g̃ = (Σ_i clip_C(m⊙g_i) + σC·m⊙z) / qN,   m uniform with (1 − r)·p ones
    ranked:     the same, m freezing the smallest |Σ g̃| of the last epoch
    posterior:  g̃ = (Σ_i m⊙clip_C(g_i) + σC·m⊙z) / qN

The freeze rate r rises by gradual cooling, r(e) = r*·min(e/(e* − 1), 1), since early steps need all parameters.
Momentum keeps moving frozen coordinates while its velocity lasts, as in the paper.

Formal guarantee: masks come from public randomness or past releases. Each step is one release of sensitivity C with
noise σC on the kept coordinates, hence a Poisson-subsampled Gaussian mechanism of multiplier σ. Frozen coordinates
release nothing; the paper's second noise term for the ranking would have cost √2 in σ and is drawn publicly instead.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from quietgrad._mechanism.clipping import Clip, FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.base import Representation
from quietgrad._representations.masks.mask import RandomMask, Redraw
from quietgrad._representations.masks.ranked_mask import RankedMask
from quietgrad.schedules import Schedule


def random_freeze(
    *, freeze: float | Schedule = 0.7, clip: float | Schedule | Clip = 1.0, redraw: Redraw = "epoch"
) -> Mechanism:
    """Mask at random, then clip, then noise on the kept coordinates.

    Args:
        freeze: r, or a schedule over epochs: `Cooling(0.9, epochs=40)`.
        clip: C for a flat clip, or another clip; it bounds the masked gradient.
        redraw: one mask per "epoch" (the paper found it better) or per "step".
    """
    return _masked("random_freeze", RandomMask(freeze, redraw), clip)


def ranked_freeze(*, freeze: Schedule, clip: float | Schedule | Clip = 1.0) -> Mechanism:
    """Freeze what moved least in the last epoch's releases.

    Args:
        freeze: r over epochs, 0 in the first: `Cooling(0.9, epochs=40)`.
        clip: C for a flat clip, or another clip; it bounds the masked gradient.
    """
    return _masked("ranked_freeze", RankedMask(freeze), clip)


def posterior_freeze(
    *, freeze: float | Schedule = 0.7, clip: float | Schedule | Clip = 1.0, redraw: Redraw = "epoch"
) -> Mechanism:
    """Clip the whole gradient, then mask at random; here for comparison.

    Args:
        freeze: r, or a schedule over epochs.
        clip: C for a flat clip, or another clip; it bounds the whole gradient.
        redraw: one mask per "epoch" or per "step".
    """
    return _masked("posterior_freeze", RandomMask(freeze, redraw, clip_first=True), clip)


def _masked(name: str, mask: Representation, clip: float | Schedule | Clip) -> Mechanism:
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    return Mechanism(name=name, releases=(Release(representation=mask, clip=rule),))
