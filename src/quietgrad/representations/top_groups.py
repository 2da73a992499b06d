"""A mask of the groups that past releases show to carry the gradient: free, because releases are public.

    m ← β·m + (1 − β)·g̃,   v ← β²·v + (1 − β)²·s²         (s: the known std of the released noise)
    energy of group b: (‖m_b‖² − |b|·v_b) / |b|

The average over time keeps what gradients have in common and lets noise cancel; what noise is left is known and
subtracted. A part of the groups is drawn at random, so that no group is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quietgrad.representations.base import Codec, Representation, State
from quietgrad.representations.coordinate_groups import GroupBy, Groups, check_group_by, group
from quietgrad.representations.coordinates import Positions, by_block, coordinates, flat, is_kept
from quietgrad.representations.group_norms import GROUP_NORMS
from quietgrad.representations.mask import (
    MASK_SALT,
    MaskCodec,
    Redraw,
    check_freeze,
    check_redraw,
    kept_count,
    redrawn,
)
from quietgrad.schedules import Schedule
from quietgrad.stages import Public, Released


@dataclass(frozen=True, eq=False)
class TopGroups(Representation):
    """Keeps the groups of highest energy per coordinate, as many as fit into (1 − r)·p coordinates.

    Args:
        freeze: r, or a schedule over epochs.
        group_by: "channel", or a number of consecutive coordinates.
        explore: the part of the kept coordinates that goes to random other groups.
        memory: β of the average over steps.
        redraw: choose anew every "epoch" or every "step".
    """

    freeze: float | Schedule
    group_by: GroupBy = "channel"
    explore: float = 0.2
    memory: float = 0.98
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
        groups, size = group(public.space, self.group_by), coordinates(public.space)
        return {
            "mean": torch.zeros(size),
            "variance": torch.zeros(len(groups)),
            "weight": torch.zeros(len(groups)),
            "paid": torch.zeros(len(groups)),
            "paid_variance": 0.0,
            "paid_weight": 0.0,
        }

    def refresh(self, public: Public, state: State) -> Codec:
        def choose() -> dict[str, Positions]:
            groups = group(public.space, self.group_by)
            budget = kept_count(self.freeze, public)
            chosen = choose_groups(
                energies(state, groups), groups, budget, self.explore, public.generator(MASK_SALT)
            )
            return by_block(groups.members(chosen), public.space)

        return MaskCodec(public.space, redrawn(self.redraw, public, state, choose))

    def observe(self, public: Public, state: State, released: Released) -> None:
        if GROUP_NORMS in released.blocks:
            self._observe_norms(state, released)
        else:
            self._observe_gradient(public, state, released)

    def _observe_gradient(self, public: Public, state: State, released: Released) -> None:
        seen = is_kept(state["kept"], public.space)
        values = flat(MaskCodec(public.space, state["kept"]).decode(released)).to(state["mean"])
        old, new = self.memory, 1 - self.memory
        state["mean"] = torch.where(seen, old * state["mean"] + new * values, state["mean"])
        # Groups are kept as a whole, so the first coordinate speaks for all.
        groups = group(public.space, self.group_by)
        chosen = torch.zeros(len(groups), dtype=torch.bool).index_put_((groups.of[seen],), torch.tensor(True))
        variance = old**2 * state["variance"] + new**2 * released.std**2
        state["variance"] = torch.where(chosen, variance, state["variance"])
        state["weight"] = torch.where(chosen, old * state["weight"] + new, state["weight"])

    def _observe_norms(self, state: State, released: Released) -> None:
        old, new = self.memory, 1 - self.memory
        state["paid"] = old * state["paid"] + new * released.blocks[GROUP_NORMS].to(state["paid"])
        state["paid_variance"] = old**2 * state["paid_variance"] + new**2 * released.std**2
        state["paid_weight"] = old * state["paid_weight"] + new


def energies(state: State, groups: Groups) -> Float[Tensor, " g"]:
    """Estimated mean square of the gradient in each group; from paid norms where there are any, else from history.

    A group that was never seen comes first, so that all are seen before any is given up.
    """
    sizes = groups.sizes.to(state["mean"])
    if state["paid_weight"] > 0:
        norms = state["paid"].clamp_min(0.0).square() - state["paid_variance"]
        paid: Tensor = norms / (sizes * state["paid_weight"] ** 2)
        return paid
    excess = groups.sum(state["mean"].square()) - sizes * state["variance"]
    return torch.where(state["weight"] > 0, excess / (sizes * state["weight"].square()), torch.inf)


def choose_groups(
    energy: Float[Tensor, " g"], groups: Groups, budget: int, explore: float, generator: torch.Generator
) -> Int[Tensor, " m"]:
    """The groups of highest energy that fit into (1 − explore)·budget coordinates, then random ones up to budget."""
    shuffled = torch.randperm(len(groups), generator=generator)
    ranked = shuffled[energy[shuffled].argsort(descending=True, stable=True)]
    best = _fitting(ranked, groups, (1 - explore) * budget)
    rest = shuffled[~torch.isin(shuffled, best)]
    chosen = torch.cat([best, _fitting(rest, groups, budget - int(groups.sizes[best].sum()))])
    return chosen if len(chosen) else ranked[:1]


def _fitting(order: Int[Tensor, " m"], groups: Groups, budget: float) -> Int[Tensor, " k"]:
    """The first groups of an order whose sizes add up to at most the budget."""
    return order[groups.sizes[order].cumsum(0) <= budget]
