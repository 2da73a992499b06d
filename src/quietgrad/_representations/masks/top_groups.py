"""A mask of the groups that past releases show to carry the gradient: free, because releases are public.

    energy of group b:   x_b = average over steps of ‖g̃_b‖²/|b| − s²        (s: the known std of the released noise)
    shrunk to its block: x̂_b = x̄ + (x_b − x̄)·τ²/(τ² + v_b)

Averages of energies outlast gradients that change their sign; the noise's own energy is known and subtracted. What is
left of it, of variance v_b = 2s⁴/|b| over the steps averaged, would still make lucky groups win: so each energy is
drawn to the mean x̄ of its block, the more the less the block's energies differ by themselves (τ²). A part of the groups
is drawn at random, so that none is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quietgrad._gradients.blocks import Positions, flatten
from quietgrad._gradients.stages import Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.masks.coordinate_groups import (
    CoordinateGroups,
    GroupBy,
    check_group_by,
    group_coordinates,
)
from quietgrad._representations.masks.coordinates import by_block, is_kept
from quietgrad._representations.masks.group_norms import GROUP_NORMS
from quietgrad._representations.masks.mask import (
    MASK_SALT,
    MaskCodec,
    Redraw,
    check_freeze,
    check_redraw,
    draw_mask,
    kept_count,
)
from quietgrad.schedules import Schedule

WHOLE_BLOCKS = 2**62
"""A group size that no block exceeds."""


@dataclass(frozen=True, eq=False)
class TopGroups(Representation):
    """Keeps the groups of highest energy per coordinate, as many as fit into (1 − r)·p coordinates.

    Args:
        freeze: r, or a schedule over epochs.
        group_by: "channel", or a number of consecutive coordinates.
        explore: the part of the kept coordinates that goes to random other groups.
        memory: weight of the past in the average over steps.
        redraw: choose anew every "epoch" or every "step".
    """

    freeze: float | Schedule
    group_by: GroupBy = "channel"
    explore: float = 0.1
    memory: float = 0.99
    redraw: Redraw = "epoch"

    def __post_init__(self) -> None:
        check_freeze(self.freeze)
        check_group_by(self.group_by)
        check_redraw(self.redraw)
        if not 0 <= self.explore <= 1:
            raise ValueError(
                f"Expected explore in [0, 1], got {self.explore}. It is the random part of the choice."
            )
        if not 0 <= self.memory < 1:
            raise ValueError(f"Expected memory in [0, 1), got {self.memory}. It is the weight of the past.")

    def init(self, public: Public) -> State:
        count = len(group_coordinates(public.space, self.group_by))
        average = {"mean": torch.zeros(count), "variance": torch.zeros(count), "weight": torch.zeros(count)}
        return {"free": average, "paid": {name: zeros.clone() for name, zeros in average.items()}}

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        def choose() -> dict[str, Positions]:
            groups = group_coordinates(public.space, self.group_by)
            budget = kept_count(self.freeze, public)
            energy = energies(state, groups, group_coordinates(public.space, WHOLE_BLOCKS))
            chosen = choose_groups(energy, groups, budget, self.explore, public.generator(MASK_SALT))
            return by_block(groups.members(chosen), public.space)

        return draw_mask(self.redraw, public, state, choose)

    def observe(self, public: Public, state: State, released: Released) -> State:
        if GROUP_NORMS in released.blocks:
            return {**state, "paid": self._norms(state, released)}
        return {**state, "free": self._energies(public, state, released)}

    def _energies(self, public: Public, state: State, released: Released) -> State:
        groups = group_coordinates(public.space, self.group_by)
        values = flatten(MaskCodec(public.space, state["kept"]).decode(released)).cpu()
        # Groups are kept as a whole, so one kept coordinate speaks for all of them.
        seen = groups.sum(is_kept(state["kept"], public.space).float()) > 0
        noise = released.noise_std**2
        energy = groups.sum(values.double().square()).float() / groups.sizes - noise
        return self._update_average(state["free"], energy, 2 * noise**2 / groups.sizes, seen)

    def _norms(self, state: State, released: Released) -> State:
        norms = released.blocks[GROUP_NORMS].cpu().float()
        variance = torch.full_like(norms, released.noise_std**2)
        return self._update_average(state["paid"], norms, variance, torch.ones_like(norms, dtype=torch.bool))

    def _update_average(
        self, average: State, value: Tensor, variance: Tensor, seen: Bool[Tensor, " g"]
    ) -> State:
        old, new = self.memory, 1 - self.memory
        moved = {
            "mean": old * average["mean"] + new * value,
            "variance": old**2 * average["variance"] + new**2 * variance,
            "weight": old * average["weight"] + new,
        }
        return {name: torch.where(seen, moved[name], average[name]) for name in average}


def energies(state: State, groups: CoordinateGroups, blocks: CoordinateGroups) -> Float[Tensor, " g"]:
    """Estimated mean square of the gradient in each group; from paid norms where there are any, else from history.

    A group that was never seen comes first, so that all are seen before any is given up.
    """
    average = state["paid"] if bool((state["paid"]["weight"] > 0).any()) else state["free"]
    weight = average["weight"].clamp_min(1e-12)
    mean, variance = average["mean"] / weight, average["variance"] / weight.square()
    if average is state["paid"]:
        paid: Tensor = (mean.clamp_min(0.0).square() - variance) / groups.sizes
        return paid
    return torch.where(average["weight"] > 0, shrunk(mean, variance, groups, blocks), torch.inf)


def shrunk(
    energy: Float[Tensor, " g"],
    variance: Float[Tensor, " g"],
    groups: CoordinateGroups,
    blocks: CoordinateGroups,
) -> Float[Tensor, " g"]:
    """Each energy drawn to its block's mean, by how much of the differences is noise (empirical Bayes)."""
    block_of = torch.zeros(len(groups), dtype=torch.long)
    block_of[groups.of] = blocks.of
    within = CoordinateGroups(of=block_of, sizes=torch.bincount(block_of, minlength=len(blocks)))
    centre = (within.sum(energy * groups.sizes) / blocks.sizes)[block_of]
    differences = within.sum((energy - centre).square() - variance) / within.sizes
    true = differences.clamp_min(0.0)[block_of]
    return centre + (energy - centre) * true / (true + variance).clamp_min(1e-30)


def choose_groups(
    energy: Float[Tensor, " g"],
    groups: CoordinateGroups,
    budget: int,
    explore: float,
    generator: torch.Generator,
) -> Int[Tensor, " m"]:
    """The groups of highest energy that fit into (1 − explore)·budget coordinates, then random ones up to budget."""
    shuffled = torch.randperm(len(groups), generator=generator)
    ranked = shuffled[energy[shuffled].argsort(descending=True, stable=True)]
    best = _fitting(ranked, groups, (1 - explore) * budget)
    rest = shuffled[~torch.isin(shuffled, best)]
    chosen = torch.cat([best, _fitting(rest, groups, budget - int(groups.sizes[best].sum()))])
    return chosen if len(chosen) else ranked[:1]


def _fitting(order: Int[Tensor, " m"], groups: CoordinateGroups, room: float) -> Int[Tensor, " k"]:
    """CoordinateGroups in order, skipping those that no longer fit."""
    fitting = []
    for number, size in zip(order.tolist(), groups.sizes[order].tolist(), strict=True):
        if size <= room:
            fitting.append(number)
            room -= size
    return torch.tensor(fitting, dtype=torch.long)
