"""PDP-SGD's theorems 2, 3 and 5: how close m public gradients come to the population's subspace."""

from __future__ import annotations

import math

import pytest
import torch

pytestmark = pytest.mark.slow


def gradients(n: int, p: int, gap: float, generator: torch.Generator) -> torch.Tensor:
    """Norms at most 1; two strong directions, an eigen-gap, and a tail."""
    scales = torch.full((p,), 0.3 / math.sqrt(p), dtype=torch.float64)
    scales[:2] = torch.tensor([0.3 + gap, 0.3 + gap], dtype=torch.float64)
    rows = torch.randn(n, p, generator=generator, dtype=torch.float64) * scales
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)


def second_moment(rows: torch.Tensor) -> torch.Tensor:
    return rows.T @ rows / len(rows)


def top(moment: torch.Tensor, k: int) -> torch.Tensor:
    vectors = torch.linalg.eigh(moment).eigenvectors[:, -k:]
    return vectors @ vectors.T


def distances(m: int, p: int, gap: float = 0.3, draws: int = 12) -> tuple[float, float]:
    """Means of ‖M − Σ‖ and of ‖V̂V̂ᵀ − VVᵀ‖."""
    generator = torch.Generator().manual_seed(0)
    population = second_moment(gradients(20_000, p, gap, generator))
    moments = [second_moment(gradients(m, p, gap, generator)) for _ in range(draws)]
    norm = torch.linalg.matrix_norm
    far = sum(float(norm(moment - population, ord=2)) for moment in moments) / draws
    apart = sum(float(norm(top(moment, 2) - top(population, 2), ord=2)) for moment in moments) / draws
    return far, apart


def test_theorems_2_and_3_distances_fall_like_one_over_the_root_of_m() -> None:
    sizes = (50, 200, 800)
    found = [distances(m, p=40) for m in sizes]
    for which in (0, 1):
        exponent = math.log(found[2][which] / found[0][which]) / math.log(sizes[2] / sizes[0])
        assert exponent == pytest.approx(-0.5, abs=0.15)


def test_theorem_2_hardly_depends_on_the_dimension_and_theorem_3_on_the_gap() -> None:
    assert distances(100, p=160)[0] < 2 * distances(100, p=10)[0]
    assert distances(100, p=40, gap=0.1)[1] > distances(100, p=40, gap=0.4)[1]


def test_theorem_5_the_tail_of_a_mean_of_matrices() -> None:
    """P(‖mean Y − E Y‖ > u) ≤ 2p·exp(−m u²/4) for 0 ≤ Y ≤ I."""
    generator = torch.Generator().manual_seed(2)
    p, m, u = 6, 100, 0.6
    population = second_moment(gradients(20_000, p, 0.3, generator))
    far = 0
    for _ in range(200):
        moment = second_moment(gradients(m, p, 0.3, generator))
        far += bool(torch.linalg.matrix_norm(moment - population, ord=2) > u)
    assert far / 200 <= 2 * p * math.exp(-m * u**2 / 4)


def test_projected_noise_has_k_of_p_of_its_energy() -> None:
    """The factor that theorems 4 and 6 put in the place of p."""
    generator = torch.Generator().manual_seed(4)
    p, k = 400, 20
    basis = torch.linalg.qr(torch.randn(p, k, generator=generator)).Q
    noise = torch.randn(200, p, generator=generator)
    assert float((noise @ basis).square().sum() / noise.square().sum()) == pytest.approx(k / p, rel=0.1)
