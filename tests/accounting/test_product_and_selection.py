"""The dominating pairs against enumeration, quadrature and dp-accounting's own subsampling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as native
from scipy import stats

from quietgrad.accounting import GaussianEvent, JointEvent, Phase, delta, epsilon
from quietgrad.accounting.pairs import gaussian_loss, subsample
from quietgrad.accounting.privacy_loss import LossPmf, compose, delta_at, epsilon_at
from quietgrad.methods.gip.mallows_event import MallowsSelection, group_loss, mallows_loss
from tests.accounting.settings import DELTA

RATE, STEPS, WIDTH = 0.02, 300, 2e-4


def unsampled(make: Callable[..., Any], parameter: float) -> LossPmf:
    """A mechanism of dp-accounting without subsampling, as one of our losses."""
    dense = make(parameter, value_discretization_interval=WIDTH)._pmf_remove.to_dense_pmf()
    return LossPmf(
        step=WIDTH, lower=dense._lower_loss, mass=np.asarray(dense._probs), infinity=dense._infinity_mass
    )


@pytest.mark.parametrize(
    ("make", "parameter"),
    [(native.from_gaussian_mechanism, 1.2), (native.from_laplace_mechanism, 1.5)],
    ids=["gaussian", "laplace"],
)
def test_generic_subsampling_is_the_native_one(make: Callable[..., Any], parameter: float) -> None:
    theirs = make(parameter, value_discretization_interval=WIDTH, sampling_prob=RATE).self_compose(STEPS)
    both = subsample(unsampled(make, parameter), RATE, WIDTH)
    for ours, native_pmf in ((both.remove, theirs._pmf_remove), (both.add, theirs._pmf_add)):
        found = epsilon_at(compose([(ours, STEPS)]), DELTA)
        assert found == pytest.approx(native_pmf.get_epsilon_for_delta(DELTA), abs=1e-4)


def test_generic_subsampling_of_our_gaussian_is_our_subsampled_gaussian() -> None:
    generic = subsample(gaussian_loss(1.2, 1.0, 1e-3).remove, RATE, WIDTH)
    exact = gaussian_loss(1.2, RATE, WIDTH)
    for ours, reference in ((generic.remove, exact.remove), (generic.add, exact.add)):
        found, expected = (epsilon_at(compose([(pmf, STEPS)]), DELTA) for pmf in (ours, reference))
        assert found == pytest.approx(expected, abs=1e-4)


def test_no_subsampling_leaves_the_pair_as_it_is() -> None:
    pmf = gaussian_loss(2.0, 1.0, 1e-3).remove
    same = subsample(pmf, 1.0, 1e-3).remove
    assert epsilon_at(same, DELTA) == pytest.approx(epsilon_at(pmf, DELTA), rel=1e-6)


def test_what_only_one_world_shows_is_kept() -> None:
    # Loss 0 with mass 0.99; the rest of P is never seen under Q (loss inf) and by symmetry the reverse.
    both = subsample(LossPmf(step=0.1, lower=0, mass=np.array([0.99]), infinity=0.01), 0.3, 0.1)
    assert both.remove.infinity == pytest.approx(0.003)
    assert both.add.infinity >= 0
    for pmf in (both.remove, both.add):
        assert pmf.mass.sum() + pmf.infinity == pytest.approx(1)


@pytest.mark.parametrize("theta", [1e-13, 2e-11])
def test_the_papers_own_theta_is_as_good_as_free(theta: float) -> None:
    selection = MallowsSelection(theta=theta, group_size=256, kept=26, groups=10_672)
    plain = GaussianEvent(noise_multiplier=10.12)
    joint = JointEvent(gaussian=plain, selections=(selection,))
    with_it, without = (epsilon([Phase(event=e, rate=0.09, count=875)], DELTA) for e in (joint, plain))
    assert with_it == pytest.approx(without, rel=2e-4)
    assert epsilon([Phase(event=selection, rate=0.09, count=875)], DELTA) == 0


def mallows(size: int, top: frozenset[int], theta: float) -> dict[frozenset[int], float]:
    """The Mallows model by enumeration: weight exp(-theta |S - S*|_1)."""
    subsets = [frozenset(s) for s in itertools.combinations(range(size), len(top))]
    weights = {s: math.exp(-theta * len(s ^ top)) for s in subsets}
    total = sum(weights.values())
    return {s: weight / total for s, weight in weights.items()}


@pytest.mark.parametrize(("size", "kept"), [(6, 1), (6, 2), (6, 3), (6, 4), (7, 3), (7, 5), (5, 2)])
def test_one_group_is_the_enumerated_worst_case_and_dominates_every_other(size: int, kept: int) -> None:
    theta = 0.3
    loss = group_loss(MallowsSelection(theta=theta, group_size=size, kept=kept, groups=1))
    assert loss.mass.sum() == pytest.approx(1)
    q = mallows(size, frozenset(range(kept)), theta)
    for eps in (0.0, 0.1, 0.5, 1.0):
        worst = 0.0
        for top in itertools.combinations(range(size), kept):
            p = mallows(size, frozenset(top), theta)
            worst = max(worst, sum(max(p[s] - math.exp(eps) * q[s], 0.0) for s in p))
        assert delta_at(loss, eps) == pytest.approx(worst, abs=1e-12)


def test_groups_compose() -> None:
    theta = 0.05
    single = group_loss(MallowsSelection(theta=theta, group_size=9, kept=3, groups=1))
    many = mallows_loss(MallowsSelection(theta=theta, group_size=9, kept=3, groups=40))
    variance = float(single.mass @ (single.losses - single.mass @ single.losses) ** 2)
    mean = float(single.mass @ single.losses)
    assert float(many.mass @ many.losses) == pytest.approx(40 * mean)
    assert float(many.mass @ (many.losses - 40 * mean) ** 2) == pytest.approx(40 * variance)
    # The design's small-theta check: rho = 4 theta^2 min(K, l-K) p (1-p) l/(l-1) and mean loss = rho of zCDP.
    assert mean == pytest.approx(4 * theta**2 * 3 * (1 / 3) * (2 / 3) * 9 / 8, rel=0.02)


@pytest.mark.parametrize("kept", [2, 4])
def test_one_subsampled_joint_step_by_quadrature(kept: int) -> None:
    noise, rate, theta, size = 0.8, 0.3, 0.4, 6
    selection = MallowsSelection(theta=theta, group_size=size, kept=kept, groups=1)
    event = JointEvent(gaussian=GaussianEvent(noise_multiplier=noise), selections=(selection,))
    other = (
        frozenset(range(size)) - frozenset(range(kept))
        if kept <= size / 2
        else frozenset(range(size - kept, size))
    )
    q_set = mallows(size, frozenset(range(kept)), theta)
    p_set = mallows(size, frozenset(sorted(other)[:kept]), theta)
    x = np.linspace(-9, 11, 400_001)
    q_x, p_x = stats.norm.pdf(x, 0, noise), stats.norm.pdf(x, 1, noise)
    for eps in (0.2, 0.5, 1.0):
        remove = add = 0.0
        for chosen in q_set:
            q, p = q_x * q_set[chosen], p_x * p_set[chosen]
            mixture = (1 - rate) * q + rate * p
            remove += np.maximum(mixture - math.exp(eps) * q, 0).sum() * (x[1] - x[0])
            add += np.maximum(q - math.exp(eps) * mixture, 0).sum() * (x[1] - x[0])
        found = delta([Phase(event=event, rate=rate, count=1)], eps)
        assert found == pytest.approx(max(remove, add), rel=1e-3)
        assert found >= max(remove, add) * (1 - 1e-6)


def test_a_selection_adds_to_the_price_and_half_is_as_dear_as_its_complement() -> None:
    def price(kept: int) -> float:
        selection = MallowsSelection(theta=0.02, group_size=16, kept=kept, groups=100)
        event = JointEvent(gaussian=GaussianEvent(noise_multiplier=2.0), selections=(selection,))
        return epsilon([Phase(event=event, rate=0.05, count=100)], DELTA)

    plain = epsilon([Phase(event=GaussianEvent(noise_multiplier=2.0), rate=0.05, count=100)], DELTA)
    assert plain < price(4) < price(8)
    assert price(4) == price(12)
