"""Random Freeze's theorem 1 and 2, lemmas 1 and 2, and its densities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quietgrad.lab.run.config import load_config
from quietgrad.schedules import Cooling

pytestmark = pytest.mark.slow

D, RATE = 200, 0.7


def masks(count: int, seed: int = 0) -> torch.Tensor:
    """(1 − r)·d ones each, drawn as `RandomMask` draws them: the head of a permutation."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.zeros(count, D)
    for row in found:
        row[torch.randperm(D, generator=generator)[: round((1 - RATE) * D)]] = 1.0
    return found


def test_lemma_1_and_its_corollary_a_mask_keeps_its_share_of_inner_products() -> None:
    generator = torch.Generator().manual_seed(1)
    u, v = torch.randn(2, D, generator=generator)
    v += u  # far from orthogonal
    drawn = masks(4_000)
    expected = (1 - RATE) * float(u @ v)
    assert float(((drawn * u) @ v).mean()) == pytest.approx(expected, rel=0.02)
    assert float(((drawn * u) * (drawn * v)).sum(1).mean()) == pytest.approx(expected, rel=0.02)


def test_lemma_2_masked_norms_are_at_least_their_share_and_the_bound_is_sharp() -> None:
    drawn = masks(4_000)
    dense = torch.randn(D, generator=torch.Generator().manual_seed(2))
    single = torch.zeros(D)
    single[3] = 1.0
    for u, shape in ((dense, (1 - RATE) ** 0.5), (single, 1 - RATE)):
        mean = float((drawn * u).norm(dim=1).mean() / u.norm())
        assert mean >= (1 - RATE) * 0.97  # the error of 4,000 draws
        assert mean == pytest.approx(shape, rel=0.05)


@pytest.mark.parametrize("rank", [None, 3])
def test_theorem_1_bounds_the_error_from_below(rank: int | None) -> None:
    """MSE ≥ Tr Σ (1 + dσ²), noise scaled to the batch's largest norm."""
    generator = torch.Generator().manual_seed(3)
    d, sigma, draws = 40, 0.5, 400
    scale = torch.ones(d, dtype=torch.float64) if rank is None else (torch.arange(d) < rank).double()
    errors = []
    for _ in range(draws):
        deviations = torch.randn(16, d, generator=generator, dtype=torch.float64) * scale
        largest = deviations.norm(dim=1).max()
        noise = sigma * largest * torch.randn(d, generator=generator, dtype=torch.float64)
        errors.append(float((deviations[0] + noise).square().sum()))
    bound = float(scale.sum()) * (1 + d * sigma**2)
    assert sum(errors) / draws >= bound
    assert sum(errors) / draws < 10 * bound


def test_theorem_2_kappa_lies_between_the_density_and_one() -> None:
    """κ = E_m[P(‖ξ'‖ < C/4)·h(g')‖g'‖] / (P(‖ξ‖ < C/4)·h(g)‖g‖), equation 68."""
    generator = torch.Generator().manual_seed(5)
    clip, deviations = 4.0, 0.05 * torch.randn(500, D, generator=generator)
    for length in (0.5, 2.0, 8.0):
        gradient = torch.randn(D, generator=generator)
        gradient *= length / gradient.norm()

        def side(mask: torch.Tensor, gradient: torch.Tensor = gradient) -> float:
            near = (deviations * mask).norm(dim=1) < clip / 4
            size = float((gradient * mask).norm())
            return float(near.float().mean()) * min(size, 0.75 * clip) * size

        whole = side(torch.ones(D))
        kappa = sum(side(mask) for mask in masks(200)) / 200 / whole
        assert kappa * 1.02 >= 1 - RATE


@pytest.mark.parametrize(("rate", "density"), [(0.7, 0.65), (0.6, 0.7), (0.4, 0.8)])
def test_table_2_total_density_of_a_schedule_that_cools_all_along(rate: float, density: float) -> None:
    cooling = Cooling(rate, epochs=80)
    assert sum(1 - cooling.at(epoch) for epoch in range(80)) / 80 == pytest.approx(density, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "baseline", "stated", "own"), [("eps3", 40, 0.60, 0.40), ("eps753", 80, 0.58, 0.46)]
)
def test_table_9_total_density_is_over_the_baselines_epochs(
    name: str, baseline: int, stated: float, own: float
) -> None:
    config = load_config(Path(f"random_freeze_end_to_end_cifar10_{name}"))
    freeze, epochs = config.method.options["freeze"], int(config.training.epochs)
    cooling = Cooling(freeze["rate"], freeze["epochs"])
    sent = sum(1 - cooling.at(epoch) for epoch in range(epochs))
    assert round(sent / baseline + 1e-9, 2) == stated
    assert sent / epochs == pytest.approx(own, abs=0.005)


def test_figure_5_gamma_laws_concentrate() -> None:
    for k in (1.0, 16.0):
        drawn = torch.distributions.Gamma(k, k).sample((20_000,))
        assert float(drawn.std()) == pytest.approx(k**-0.5, rel=0.05)
