"""Carriers are orthonormal whatever they are made of, and find the principal directions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._representations.low_rank.carriers import (
    HistoricalUpdate,
    RandomCarriers,
    orthonormal_columns,
    power_method,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def low_rank_matrix(rank: int, noise: float = 0.0) -> Tensor:
    return torch.randn(40, rank) @ torch.randn(rank, 60) + noise * torch.randn(40, 60)


@pytest.mark.parametrize(
    "matrix",
    [torch.zeros(40, 60), low_rank_matrix(2), 1e-20 * low_rank_matrix(5), 1e12 * torch.randn(40, 60)],
    ids=["zero", "of_smaller_rank", "tiny", "huge"],
)
def test_orthonormal_whatever_the_update_is(matrix: Tensor) -> None:
    carriers = power_method(matrix, 5, 1, rng())
    torch.testing.assert_close(carriers.left.T @ carriers.left, torch.eye(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(carriers.right @ carriers.right.T, torch.eye(5), atol=1e-5, rtol=0)


def test_one_power_iteration_finds_a_matrix_of_that_rank_exactly() -> None:
    matrix = low_rank_matrix(3)
    carriers = power_method(matrix, 3, 1, rng())
    torch.testing.assert_close(carriers.left @ carriers.left.T @ matrix, matrix, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(matrix @ carriers.right.T @ carriers.right, matrix, atol=1e-3, rtol=1e-4)


def test_more_iterations_come_closer_to_the_principal_directions() -> None:
    matrix = low_rank_matrix(3, noise=1.0)
    captured = [(matrix @ power_method(matrix, 3, k, rng()).right.T).norm() for k in (1, 8)]
    best = torch.linalg.svdvals(matrix)[:3].norm()
    assert captured[0] < captured[1] <= best * (1 + 1e-5)
    assert captured[1] > 0.99 * best


def test_missing_directions_are_random_not_the_first_axes() -> None:
    filled = orthonormal_columns(torch.zeros(50, 2), rng())
    assert filled.abs().max() < 0.9
    assert not torch.equal(filled, orthonormal_columns(torch.zeros(50, 2), rng(1)))


def test_the_weight_during_warm_up_and_the_update_afterwards() -> None:
    start, update = low_rank_matrix(2), low_rank_matrix(2)
    rule = HistoricalUpdate(warmup_steps=3)
    state = rule.init({"w": start})
    weight = start + update
    before = rule.carriers("w", weight, 4, 2, state, rng())
    after = rule.carriers("w", weight, 2, 3, state, rng())
    torch.testing.assert_close(weight @ before.right.T @ before.right, weight, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(update @ after.right.T @ after.right, update, atol=1e-3, rtol=1e-4)


def test_the_remembered_start_does_not_move_with_the_weight() -> None:
    weight = low_rank_matrix(2)
    state = HistoricalUpdate().init({"w": weight})
    kept = weight.clone()
    weight += 1.0
    assert torch.equal(state["w"], kept)


def test_random_carriers_are_fresh_and_reproducible() -> None:
    weight = torch.randn(12, 20)
    first, again, other = (RandomCarriers().carriers("w", weight, 3, 0, {}, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.left, again.left)
    assert not torch.allclose(first.right, other.right, atol=0.1)
    torch.testing.assert_close(first.left.T @ first.left, torch.eye(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bad", [{"warmup_steps": -1}, {"iterations": 0}])
def test_bad_settings_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        HistoricalUpdate(**bad)
