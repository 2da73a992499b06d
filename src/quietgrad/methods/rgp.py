"""RGP: reparametrized gradient perturbation (Yu, Zhang, Chen, Yin, Liu 2021, "Large Scale Private Learning via Low-rank
Reparametrization"), and RGP-random, its baseline with random carriers.

Every matrix W `[o, i]` (a kernel flattened to `[out, in·kh·kw]`) has carriers L `[o, r]`, R `[r, i]` from one power
iteration on the historical update W_t − W_0, which is public. A sample's gradient G is replaced by

    A = GRᵀ,  D = LᵀG(I − RᵀR)       of r(o + i) instead of o·i coordinates,

everything is clipped jointly with the parameters without carriers, and W's gradient becomes ÃR + L·D̃(I − RᵀR): the
projection of G on matrices whose rows or columns lie in the carriers' spans (the paper's Corollary 2.1.1), plus noise.

Formal guarantee: one release of sensitivity C with noise σC, so each step is a Poisson-subsampled Gaussian mechanism of
multiplier σ. The carriers are functions of the initial weights, of past releases and of public randomness: free.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from collections.abc import Sequence

from quietgrad._mechanism.clipping import Clip, FlatClip, PerGroupClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.low_rank.carriers import CarrierRule, HistoricalUpdate, RandomCarriers
from quietgrad._representations.low_rank.low_rank import CarriedParts, LowRank
from quietgrad._representations.low_rank.matrices import Ranks
from quietgrad.schedules import Schedule


def rgp(
    *,
    rank: Ranks,
    clip: float | Schedule | Clip = 1.0,
    release: CarriedParts = "orthogonal",
    warmup_steps: int = 0,
    iterations: int = 1,
    matrices: Sequence[str] | None = None,
) -> Mechanism:
    """Noise on thin gradient carriers found in the historical update.

    Args:
        rank: r; the paper tries 1, 2, 4, 8, 16. Capped by each matrix's shape. Or a rank for each name,
            {"stage1.*": 4, "stage2.*": 8}.
        clip: C of the joint clip, or an `AutomaticClip`.
        release: "orthogonal" parts A and D; "paper" for ∂L and ∂R, which the clip bounds more tightly at the same
            noise; "left" for A alone.
        warmup_steps: steps at first whose carriers come from the weight itself.
        iterations: K of the power method.
        matrices: names of the parameters with carriers, `*` matching anything. Left out: every matrix that gets at
            least twice smaller, except the last one, the classifier.
    """
    rule = HistoricalUpdate(warmup_steps=warmup_steps, iterations=iterations)
    return _mechanism("rgp", rank, clip, release, rule, matrices)


def rgp_random(
    *,
    rank: Ranks,
    clip: float | Schedule | Clip = 1.0,
    release: CarriedParts = "orthogonal",
    matrices: Sequence[str] | None = None,
) -> Mechanism:
    """RGP with random orthonormal carriers, fresh at every step; arguments as in `rgp`."""
    return _mechanism("rgp_random", rank, clip, release, RandomCarriers(), matrices)


def _mechanism(
    name: str,
    rank: Ranks,
    clip: float | Schedule | Clip,
    release: CarriedParts,
    carriers: CarrierRule,
    matrices: Sequence[str] | None,
) -> Mechanism:
    if isinstance(clip, PerGroupClip):
        raise ValueError(
            f"{name} clips all carriers and other parameters jointly. Pass a number or an AutomaticClip."
        )
    representation = LowRank(
        rank=rank, carriers=carriers, release=release, matrices=None if matrices is None else tuple(matrices)
    )
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    return Mechanism(name=name, releases=(Release(representation=representation, clip=rule),))
