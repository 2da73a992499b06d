"""Norms and sums of formed rows in C are float64's at every level, whatever the strides and threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.row_arithmetic import row_squared_norms, weighted_rows
from quietgrad._kernels import levels

pytestmark = pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
LEVELS = levels.levels()
SIZES = [(1, 1), (3, 31), (5, 32), (4, 33), (130, 100), (7, 5000), (2, 4097)]
"""Rows and their lengths: in whole vectors and blocks and not."""


def drawn(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(sum(size))
    return torch.randn(size, generator=g), torch.rand(size[0], generator=g).double()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_norms_and_sums_are_those_of_float64(size: tuple[int, int], level: str) -> None:
    rows, weights = drawn(size)
    with levels.use_level(level):
        assert row_squared_norms.find_kernel(rows) is not None
        assert weighted_rows.find_kernel(weights, rows) is not None
        squared, total = row_squared_norms(rows), weighted_rows(weights, rows)
    truth = rows.double().square().sum(1)
    assert bool((squared >= truth * (1 - 1e-15)).all())
    torch.testing.assert_close(squared, truth, rtol=1e-11, atol=0.0)
    torch.testing.assert_close(total, weights @ rows.double(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_level_and_number_of_threads_gives_the_same_bits(size: tuple[int, int]) -> None:
    rows, weights = drawn(size)
    before, found = torch.get_num_threads(), []
    try:
        for level in LEVELS:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                with levels.use_level(level):
                    found.append(torch.cat([row_squared_norms(rows), weighted_rows(weights, rows)]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e30, 3e38])
def test_nothing_is_lost_to_float32s_range(scale: float, level: str) -> None:
    rows = torch.full((2, 300), scale)
    with levels.use_level(level):
        squared, total = row_squared_norms(rows), weighted_rows(torch.tensor([1e-35, 1.0]).double(), rows)
    assert bool((squared >= rows.double().square().sum(1)).all())
    torch.testing.assert_close(total, rows[0].double() * (1 + 1e-35), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_alone_and_adds_nothing_with_weight_zero(value: float, level: str) -> None:
    rows, weights = drawn((9, 50))
    rows[4, 7], weights[4] = value, 0.0
    clean = rows.clone()
    clean[4] = 0.0
    with levels.use_level(level):
        assert row_squared_norms(rows).isfinite().logical_not().nonzero().tolist() == [[4]]
        assert torch.equal(weighted_rows(weights, rows), weighted_rows(weights, clean))


@pytest.mark.parametrize("level", LEVELS)
def test_rows_may_lie_apart_or_on_each_other(level: str) -> None:
    rows, weights = drawn((6, 40))
    with levels.use_level(level):
        for laid in (torch.cat([rows, rows], 1)[:, :40], rows[:1].expand(6, 40), rows.T.contiguous().T):
            dense = laid.contiguous()
            assert torch.equal(row_squared_norms(laid), row_squared_norms(dense))
            assert torch.equal(weighted_rows(weights, laid), weighted_rows(weights, dense))


def test_empty_double_and_unbuilt_take_the_torch_path() -> None:
    with levels.use_level(LEVELS[-1]):
        for rows in (torch.randn(0, 3), torch.randn(3, 0), torch.randn(3, 4).double()):
            assert row_squared_norms.find_kernel(rows) is None
            assert weighted_rows.find_kernel(torch.ones(len(rows)), rows) is None
    with levels.use_level("off"):
        assert row_squared_norms.find_kernel(torch.randn(3, 4)) is None
