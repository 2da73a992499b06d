"""GEP's lemmas and theorems, as far as a computer can check them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.special import logsumexp
from scipy.stats import norm

pytestmark = pytest.mark.slow

P = 60


def low_rank(k: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Gradients of a Gaussian law in k of P dimensions, the same ones for one generator seed."""
    directions = torch.randn(k, P, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return torch.randn(rows, k, generator=generator, dtype=torch.float64) @ directions


def projection(rows: torch.Tensor, k: int) -> torch.Tensor:
    """Onto the top k right singular directions."""
    right = torch.linalg.svd(rows, full_matrices=False).Vh[:k]
    return right.T @ right


@pytest.mark.parametrize("k", [3, 12])
def test_lemma_31_as_many_anchors_as_dimensions_leave_no_residual_and_one_less_does(k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    private = low_rank(k, 50, generator)
    for m, enough in ((k, True), (k - 1, False)):
        anchors = low_rank(k, m, generator)
        residual = private - private @ projection(anchors, k)
        share = float(residual.norm() / private.norm())
        assert (share < 1e-10) if enough else (share > 0.01)


def test_lemma_32_bounds_the_expected_residual() -> None:
    """E‖ξ − Πξ‖² ≤ Σ_{k'>k} λ + √(kC/m) + T√(2δ/m), for gradients bounded by T."""
    generator = torch.Generator().manual_seed(1)
    scales = 1.0 / torch.arange(1, P + 1, dtype=torch.float64)

    def draw(n: int) -> torch.Tensor:
        rows = torch.randn(n, P, generator=generator, dtype=torch.float64) * scales
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)

    many = draw(20_000)
    spectrum = torch.linalg.eigvalsh(many.T @ many / len(many)).flip(0)
    k, delta = 8, 3.0
    for m in (20, 200):
        for _ in range(20):
            anchors = draw(m)
            found = torch.linalg.eigvalsh(anchors.T @ anchors / m)
            residual = many - many @ projection(anchors, k)
            fourth = many.norm(dim=1).pow(4).mean() + anchors.norm(dim=1).pow(4).mean()
            constant = float(fourth - spectrum.square().sum() - found.square().sum())
            bound = float(spectrum[k:].sum()) + math.sqrt(k * constant / m) + math.sqrt(2 * delta / m)
            assert float(residual.square().sum(1).mean()) <= bound


def exact_epsilon(multiplier: float, times: int, delta: float) -> float:
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), times))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_theorems_31_and_32_promise_no_less_than_what_is_spent(epsilon: float) -> None:
    delta = 1e-5
    one = 2 * math.sqrt(2 * math.log(1 / delta)) / epsilon
    assert exact_epsilon(one, 2, delta) <= epsilon  # two releases of one batch
    many = 2 * math.sqrt(2 * 50 * math.log(1 / delta)) / epsilon
    assert exact_epsilon(many, 2 * 50, delta) <= epsilon
    assert exact_epsilon(one / 4, 2, delta) > epsilon  # the claim can fail


@pytest.mark.parametrize("subspace", [True, False])
def test_theorem_33_excess_error_follows_the_subspace_and_not_the_dimension(subspace: bool) -> None:
    """Noisy gradient descent on ½‖x_k‖² whose gradients lie in k of p coordinates."""
    errors = []
    for p in (20, 2_000):
        generator = torch.Generator().manual_seed(3)
        k, noise, rate = 10, 0.05, 0.2
        weights, total, steps = torch.zeros(p), torch.zeros(p), 400
        target = torch.zeros(p)
        target[:k] = 1.0
        for _ in range(steps):
            step = (weights - target) + noise * torch.randn(p, generator=generator) * (
                (torch.arange(p) < k).float() if subspace else 1.0
            )
            weights = weights - rate * step
            total += weights
        errors.append(float((total / steps - target).square().sum()))
    assert (errors[1] < 1.5 * errors[0]) if subspace else (errors[1] > 1.5 * errors[0])


def renyi(order: float, mean: float, std: float) -> float:
    """D_λ(N(mean, std²) ‖ N(0, std²)) by quadrature: log ∫ p^λ q^{1−λ} / (λ − 1)."""
    x = np.linspace(mean * order - 12 * std, mean * order + 12 * std, 20_001)
    logs = order * norm.logpdf(x, mean, std) + (1 - order) * norm.logpdf(x, 0.0, std)
    return float((logsumexp(logs) + math.log(x[1] - x[0])) / (order - 1))


@pytest.mark.parametrize("order", [1.5, 4.0, 20.0])
def test_lemmas_d2_and_d3_gaussian_divergences_are_linear_in_the_order_and_add_up(order: float) -> None:
    one, two = renyi(order, 1.0, 3.0), renyi(order, 2.0, 5.0)
    assert one == pytest.approx(order / (2 * 3.0**2), rel=1e-6)
    # Both together are one Gaussian at the distance of the two multipliers.
    together = renyi(order, math.hypot(1.0 / 3.0, 2.0 / 5.0), 1.0)
    assert one + two == pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_lemma_d4_the_conversion_promises_no_less_than_what_is_spent(delta: float) -> None:
    multiplier = 2.0
    for order in (2.0, 8.0, 32.0):
        epsilon = order / (2 * multiplier**2) + math.log(1 / delta) / (order - 1)
        shift = epsilon * multiplier - 1 / (2 * multiplier)
        spent = norm.sf(shift) - math.exp(epsilon) * norm.sf(shift + 1 / multiplier)
        assert spent <= delta


def test_theorem_d1_as_many_random_vectors_as_dimensions_are_independent() -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        square = torch.randn(12, 12, generator=generator, dtype=torch.float64)
        assert int(torch.linalg.matrix_rank(square)) == 12
