"""GIP's theorem 1 and 2, propositions 2 and 3, corollary 1."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import quietgrad as qg
from quietgrad.lab.papers.experiments.gip_figures import beta, expected_swaps, pruning_error
from quietgrad.methods.gip.noise import SelectedGaussian

pytestmark = pytest.mark.slow


def mallows(reference: tuple[int, ...], theta: float) -> dict[tuple[int, ...], float]:
    """Every set of the same size with its probability."""
    length, ones = len(reference), sum(reference)
    sets = [
        tuple(int(i in chosen) for i in range(length))
        for chosen in itertools.combinations(range(length), ones)
    ]
    weights = [math.exp(-theta * sum(a != b for a, b in zip(s, reference, strict=True))) for s in sets]
    return {s: w / sum(weights) for s, w in zip(sets, weights, strict=True)}


def test_theorem_1_the_largest_log_ratio_is_theta_times_the_sensitivity() -> None:
    theta, length, ones = 0.3, 6, 2
    references = list(mallows((1, 1, 0, 0, 0, 0), theta))
    worst = max(
        abs(math.log(mallows(a, theta)[s] / mallows(b, theta)[s]))
        for a in references
        for b in references
        for s in references
    )
    sensitivity = min(2 * ones, 2 * length - 2 * ones)
    assert worst == pytest.approx(theta * sensitivity)


def test_theorem_2_the_sum_of_both_budgets_is_more_than_what_both_cost() -> None:
    class Plan:
        rate, steps = 0.05, 40

    mechanism = qg.methods.gip(512, Plan(), keep=0.1)
    gip = qg.calibrate(mechanism, Plan(), epsilon=2.0, delta=1e-5)
    plain = qg.calibrate(qg.methods.dp_sgd(), Plan(), epsilon=1.98, delta=1e-5)
    assert isinstance(gip.noise, SelectedGaussian)
    assert gip.noise_multiplier is not None
    assert plain.noise_multiplier is not None
    assert gip.noise_multiplier <= plain.noise_multiplier  # the paper spends ε₁ = 0.99 ε on the values


def test_proposition_2_counts_the_pruned_part_twice() -> None:
    """Simulated 0.560 at d = 256, k = 0.1; the paper's formula gives 0.505, without its factor 1 − k it is 0.561."""
    d, k = 256, 0.1
    rows = torch.randn(4_000, d, generator=torch.Generator().manual_seed(0))
    kept = round(k * d)
    pruned = rows.square().sort(dim=1).values[:, : d - kept]
    simulated = float(pruned.sum(1).mean()) / d
    assert simulated == pytest.approx(0.560, abs=0.005)
    assert pruning_error(k, corrected=False) == pytest.approx(0.505, abs=0.001)
    assert pruning_error(k, corrected=True) == pytest.approx(simulated, abs=0.005)
    at_random = float(rows.square()[:, : d - kept].sum(1).mean()) / d
    assert at_random == pytest.approx(1 - k, abs=0.01)
    assert simulated < at_random


def test_proposition_2_counts_swaps_as_the_mallows_model_makes_them() -> None:
    theta, reference = 0.4, (1, 1, 0, 0, 0, 0, 0, 0)
    exact = sum(
        p * sum(a > b for a, b in zip(reference, s, strict=True))
        for s, p in mallows(reference, theta).items()
    )
    assert expected_swaps(0.25, 8, theta) == pytest.approx(exact)


def test_proposition_3_randomised_response() -> None:
    """p = e^{ε/s}/(1 + e^{ε/s}) flips each index: the worst ratio over s changed indices is e^ε."""
    for epsilon, changed in ((1.0, 4), (0.01, 20_000)):
        p = math.exp(epsilon / changed) / (1 + math.exp(epsilon / changed))
        assert changed * math.log(p / (1 - p)) == pytest.approx(epsilon)
    assert p - 0.5 == pytest.approx(1.25e-7, rel=0.01)


def test_corollary_1_pruning_pays_below_beta_and_not_above() -> None:
    d, k = 256, 0.1
    for sigma_g, pays in ((0.9, True), (1.1, False)):
        limit = beta(k, d, 0.0, corrected=True)
        share = sigma_g * limit
        gradients = math.sqrt(share) * torch.randn(3_000, d, generator=torch.Generator().manual_seed(1))
        kept = round(k * d)  # at θ = 0 the choice is uniform
        lost = float(gradients[:, kept:].square().sum(1).mean())
        assert (lost + k * d < d) == pays
    assert beta(k, d, 0.0, corrected=True) < beta(k, d, 0.0, corrected=False)
