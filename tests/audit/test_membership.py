"""Membership inference: the success rate, its interval, and the bound that no attack exceeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from quietgrad.accounting import GaussianEvent, Phase
from quietgrad.audit.membership import success_bound, threshold_attack
from quietgrad.audit.shadows import confidences, lira, losses, rmia

MNIST = {1.0: (3.5072, 0.553), 2.0: (1.9765, 0.597), 8.0: (0.8511, 0.772)}


@pytest.mark.parametrize("epsilon", MNIST)
def test_the_bound_of_the_mnist_setting(epsilon: float) -> None:
    sigma, expected = MNIST[epsilon]
    phases = [Phase(event=GaussianEvent(noise_multiplier=sigma), rate=1 / 60, count=3_000)]
    assert success_bound(phases) == pytest.approx(expected, abs=0.001)
    assert success_bound(phases) < (np.exp(epsilon) + 1e-5) / (1 + np.exp(epsilon))


def test_a_gaussian_attack_reaches_its_bound() -> None:
    """Scores of one full-batch Gaussian release: the best attack succeeds with Φ(μ/2) = (1 + δ(0))/2."""
    rng = np.random.default_rng(0)
    phases = [Phase(event=GaussianEvent(noise_multiplier=1.0), rate=1.0, count=1)]
    report = threshold_attack(1 + rng.standard_normal(40_000), rng.standard_normal(40_000), phases=phases)
    assert report.bound is not None
    assert report.bound == pytest.approx(0.6915, abs=1e-3)
    assert report.interval[0] <= report.bound <= report.interval[1]
    assert report.evaluated == 40_000
    assert report.verdict == "consistent"
    louder = threshold_attack(2 + rng.standard_normal(40_000), rng.standard_normal(40_000), phases=phases)
    assert louder.verdict == "violated"


def test_noise_alone_is_a_coin() -> None:
    rng = np.random.default_rng(1)
    low = 0
    for seed in range(50):
        report = threshold_attack(
            rng.standard_normal(500), rng.standard_normal(900), phases=None, confidence=0.95, seed=seed
        )
        low += report.interval[0] <= 0.5 <= report.interval[1]
    # The threshold was chosen on the other half: the interval keeps its promise.
    assert low >= 44
    assert report.verdict == "not private"
    with pytest.raises(ValueError, match="at least 4"):
        threshold_attack(np.ones(2), np.ones(9), phases=None)


def difficulty_world(seed: int) -> tuple[np.ndarray, ...]:
    """Confidences that depend on how hard a record is; the target is surer of its members."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 2, 3_000)
    members = rng.random(3_000) < 0.5
    target = 1 / (1 + np.exp(hard - 1.0 * members + 0.4 * rng.standard_normal(3_000)))
    shadows = 1 / (1 + np.exp(hard + 0.4 * rng.standard_normal((4, 3_000))))
    return members, target, shadows


@pytest.mark.parametrize("attack", ["rmia", "lira"])
def test_shadows_take_difficulty_out(attack: str) -> None:
    members, target, shadows = difficulty_world(2)
    _, other, other_shadows = difficulty_world(3)
    scores = rmia(target, shadows, other, other_shadows) if attack == "rmia" else lira(target, shadows)
    plain = threshold_attack(target[members], target[~members], phases=None)
    better = threshold_attack(scores[members], scores[~members], phases=None, name=attack)
    assert better.success > plain.success + 0.1
    with pytest.raises(ValueError, match="at least 2 shadow models"):
        lira(target, shadows[:1])


def test_losses_and_confidences_agree() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(70, 4), torch.randint(3, (70,))
    assert np.allclose(np.exp(-losses(model, x, y, chunk=32)), confidences(model, x, y, chunk=32), atol=1e-6)
