"""Gradient index pruning, "Improving differentially-private deep learning with gradients index pruning".

    gip:       g̃ = (Σ_i clip_C(g_i) + σC·z)⊙I / qN,   I a noisy top-k of Σ_i clip_C(g_i) (Mallows model, groups of ℓ)
    random_k:  the same with I uniform

**At the paper's budget (1% of ε for the indices) gip chooses no better than random_k**: composed over its groups and
steps, θ is so small that the chosen coordinates hold as much of the gradient as random ones. It is here to reproduce
the paper, with the indices accounted for exactly; `top_groups` is the selector that works.

Formal guarantee: random_k is a release of sensitivity C with noise σC on coordinates drawn publicly: a
Poisson-subsampled Gaussian mechanism of multiplier σ. A step of gip is a Gaussian of multiplier σ *and* a Mallows
selection in every group, all from one batch; the accountant composes their losses and subsamples the product, so that
`qg.calibrate` meets ε for both together.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from torch import nn

from quietgrad._mechanism.clipping import Clip, FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.masks.mask import RandomMask, Redraw
from quietgrad.accounting.planning import Steps
from quietgrad.methods.gip.counted import Counted
from quietgrad.methods.gip.noise import SelectedGaussian
from quietgrad.methods.gip.selection import Grouping
from quietgrad.schedules import Complement, PerEpoch, Schedule, check_fits, epoch_of, value_at


def gip(
    model: nn.Module | int,
    batches: Steps,
    *,
    index_share: float = 0.01,
    theta: float | None = None,
    keep: float | Schedule = 0.1,
    group_size: int = 256,
    clip: float | Schedule | Clip = 1.0,
) -> Mechanism:
    """Clip, sum, choose indices by noisy top-k, add noise; no better than `random_k` at the paper's budget.

    `qg.calibrate` sets θ, the largest for which the selections alone, over all groups and steps, cost index_share·ε,
    and then σ, so that both together cost ε.

    Args:
        model: the model that is trained, or its number of trainable coordinates.
        batches: gives rate and steps.
        index_share: the part of ε that the indices may cost alone; 0 chooses uniformly.
        theta: θ itself, for who sets the noise by hand.
        keep: the part of each group that is released, or a schedule over epochs (the paper: linear from 1 to 0.1).
        group_size: ℓ; coordinates that are left over form a smaller group.
        clip: C for a flat clip, or another clip.

    Raises:
        ValueError: the indices' share is not in [0, 1).
    """
    _check_keep(keep, batches)
    if not 0 <= index_share < 1:
        raise ValueError(
            f"Expected index_share in [0, 1), got {index_share}: the indices are paid from the whole ε."
        )
    count = model if isinstance(model, int) else sum(p.numel() for p in model.parameters() if p.requires_grad)
    grouping = Grouping(coordinates=count, group_size=group_size)
    over_steps = PerEpoch(keep, batches.rate) if isinstance(keep, Schedule) else keep
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    return Mechanism(
        name="gip",
        releases=(Release(representation=Counted(count), clip=rule),),
        noise=SelectedGaussian(grouping=grouping, keep=over_steps, theta=theta, index_share=index_share),
    )


def random_k(
    *, keep: float | Schedule = 0.5, clip: float | Schedule | Clip = 1.0, redraw: Redraw = "step"
) -> Mechanism:
    """Clip, then release a random part of the coordinates: gip's baseline.

    Args:
        keep: the part that is released, or a schedule over epochs (the paper: exponential from 1 to 0.5).
        clip: C for a flat clip, or another clip; it bounds the whole gradient.
        redraw: fresh indices per "step" (the paper) or per "epoch".
    """
    freeze = Complement(keep) if isinstance(keep, Schedule) else 1.0 - keep
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    mask = RandomMask(freeze, redraw, clip_first=True)
    return Mechanism(name="random_k", releases=(Release(representation=mask, clip=rule),))


def _check_keep(keep: float | Schedule, batches: Steps) -> None:
    check_fits("keep", keep, steps=batches.steps, rate=batches.rate)
    last = epoch_of(batches.steps - 1, batches.rate)
    for epoch in range(last + 1 if isinstance(keep, Schedule) else 1):
        if not 0 < value_at(keep, epoch) <= 1:
            raise ValueError(f"Expected keep in (0, 1], got {value_at(keep, epoch):g} in epoch {epoch}.")
