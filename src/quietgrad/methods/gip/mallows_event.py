"""What GIP's choice of indices costs: the event of a Mallows selection in every group of coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from quietgrad.accounting.base import Event, register_event
from quietgrad.accounting.events import whole_number
from quietgrad.accounting.pairs import no_loss
from quietgrad.accounting.privacy_loss import LossPmf, compose, split_to_grid
from quietgrad.accounting.renyi_moments import Orders, log_choose


@register_event("mallows")
@dataclass(frozen=True, kw_only=True)
class MallowsSelection(Event):
    """Noisy top-k of every group: Pr[S] ~ exp(-θ |S - S*|_1), drawn in each group on its own.

    Args:
        theta: dispersion of the Mallows model; 0 draws uniformly and costs nothing.
        group_size: coordinates of a group.
        kept: how many of them are selected.
        groups: number of groups of this shape.

    Raises:
        ValueError: the dispersion is negative or infinite, or more is kept than a group has.

    Example:
        selection = qg.accounting.MallowsSelection(theta=0.1, group_size=64, kept=16, groups=10)
        event = qg.accounting.JointEvent(gaussian=gaussian, selections=(selection,))
    """

    theta: float
    group_size: int
    kept: int
    groups: int

    def __post_init__(self) -> None:
        theta = float(self.theta)
        if not (0 <= theta < math.inf):
            raise ValueError(
                f"Expected theta >= 0 and finite, got {self.theta}. Pass 0 for a uniform choice."
            )
        object.__setattr__(self, "theta", theta)
        for name, least in (("group_size", 1), ("kept", 0), ("groups", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if self.kept > self.group_size:
            raise ValueError(f"Expected kept <= group_size={self.group_size}, got {self.kept}. Keep fewer.")

    @property
    def is_free(self) -> bool:
        return self.theta == 0 or not 0 < self.kept < self.group_size

    @property
    def spread(self) -> float:
        """√(2ρ), with the small-θ zCDP ρ = 4 θ² min(K, ℓ−K) p (1−p) ℓ/(ℓ−1) of each group, p = K/ℓ."""
        if self.is_free:
            return 0.0
        size, share = self.group_size, self.kept / self.group_size
        smaller = min(self.kept, size - self.kept)
        zcdp = 4 * self.theta**2 * smaller * share * (1 - share) * size / (size - 1)
        return math.sqrt(2 * self.groups * zcdp)

    def loss(self, step: float) -> LossPmf:
        if self.is_free:
            return no_loss(step).remove
        exact = mallows_loss(self)
        return split_to_grid(exact.losses, exact.mass, step=step, infinity=exact.infinity)

    def log_moments(self, largest: int) -> Orders:
        if self.is_free:
            return np.zeros(largest + 1)
        group = group_loss(self)
        return self.groups * np.array([group.log_mgf(k - 1) for k in range(largest + 1)])


def mallows_loss(selection: MallowsSelection) -> LossPmf:
    """Return the loss of all groups of a selection, exactly, on a grid of width 2 θ."""
    return compose([(group_loss(selection), selection.groups)])


def group_loss(selection: MallowsSelection) -> LossPmf:
    """Return the loss of one group of a selection: 2 θ (h1 - h2).

    The worst neighbours have disjoint top sets A1, A2 (disjoint complements if more than half is kept); h1,
    h2 are how many of A1, A2 were drawn: Pr[h1, h2] ~ C(K,h1) C(K,h2) C(l-2K, K-h1-h2) exp(2 θ h1).
    Checked by: tests/accounting/test_product_and_selection.py
    """
    kept = min(selection.kept, selection.group_size - selection.kept)
    others = selection.group_size - 2 * kept
    h1, h2 = (axis.ravel() for axis in np.indices((kept + 1, kept + 1)))
    valid = (h1 + h2 <= kept) & (kept - h1 - h2 <= others)
    h1, h2 = h1[valid], h2[valid]
    log_weight = log_choose(kept, h1) + log_choose(kept, h2) + log_choose(others, kept - h1 - h2)
    log_weight = log_weight + 2 * selection.theta * h1
    mass = np.zeros(2 * kept + 1)
    np.add.at(mass, h1 - h2 + kept, np.exp(log_weight - special.logsumexp(log_weight)))
    return LossPmf(step=2 * selection.theta, lower=-kept, mass=mass, infinity=0.0)
