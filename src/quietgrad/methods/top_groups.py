"""Top groups: a mask of the groups of coordinates that carry the gradient, learnt from what was released anyway.

    g̃ = (Σ_i clip_C(m⊙g_i) + σ/√f₁·C·m⊙z) / qN,   m: groups of highest energy in past releases, and a few random ones
    paid energies, optional: (Σ_i clip_C(u_i) + σ/√f₂·C·z) / qN,   u_i = (‖(g_i)_b‖)_b, f₁ + f₂ = 1

Formal guarantee: the mask is a function of past releases and public randomness. Each release has sensitivity C
(‖u_i‖ = ‖g_i‖ for disjoint groups) and noise for its share, so that the step is one Poisson-subsampled Gaussian
mechanism of multiplier σ. Paying f₂ = 1% for energies makes the gradient's noise 0.5% louder.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from quietgrad._mechanism.clipping import Clip, FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.masks.coordinate_groups import GroupBy
from quietgrad._representations.masks.group_norms import GroupNorms
from quietgrad._representations.masks.mask import Redraw
from quietgrad._representations.masks.top_groups import TopGroups
from quietgrad.schedules import Schedule


def top_groups(
    *,
    freeze: float | Schedule = 0.7,
    group_by: GroupBy = "channel",
    explore: float = 0.1,
    memory: float = 0.99,
    redraw: Redraw = "epoch",
    clip: float | Schedule | Clip = 1.0,
    paid_share: float = 0.0,
) -> Mechanism:
    """Mask all but the most energetic groups, then clip, then noise on the kept coordinates.

    Args:
        freeze: the part of the coordinates that is frozen, or a schedule over epochs.
        group_by: groups are output channels, or that many consecutive coordinates.
        explore: the part of what is kept that goes to random groups.
        memory: weight of the past in the average of releases.
        redraw: choose groups every "epoch" or every "step".
        clip: C for a flat clip, or another clip; it bounds the masked gradient.
        paid_share: part of the budget spent on a release of group norms; 0 uses free history only.

    Raises:
        ValueError: the paid share is not in [0, 1), or is paid under a clip that is not flat.
    """
    if not 0 <= paid_share < 1:
        raise ValueError(f"Expected paid_share in [0, 1), got {paid_share}: the gradient needs a share too.")
    mask = TopGroups(freeze, group_by, explore, memory, redraw)
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    gradient = Release(representation=mask, clip=rule, share=1.0 - paid_share)
    if paid_share == 0:
        return Mechanism(name="top_groups", releases=(gradient,))
    if isinstance(clip, Clip) and not isinstance(clip, FlatClip):
        raise ValueError(
            f"Paid energies need a flat clip, got {type(clip).__name__}: group norms mix the blocks."
        )
    norms = Release(representation=GroupNorms(mask, group_by), clip=rule, share=paid_share)
    return Mechanism(name="top_groups", releases=(gradient, norms))
