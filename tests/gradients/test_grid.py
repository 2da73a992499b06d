"""Whole steps: rounding is paid for, sums are exact, their order and grouping do not matter."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.grid import LARGEST, WORST_ROUNDING, Grid
from quietgrad._gradients.stages import ClippedSum

STEPS = [1.0, 2.0**-26 * 1.37, 3e-12, 7.7e5]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rounding_moves_two_sums_apart_by_no_more_than_is_paid_for(step: float, dtype: torch.dtype) -> None:
    grid, rng = Grid(step), torch.Generator().manual_seed(0)
    for size in (0.3, 1e3, 1e9, 1e14):
        at, near = torch.randn(2, 4000, generator=rng, dtype=torch.float64)
        x = (at * size * step).to(dtype).nan_to_num()
        y = (x + (near * 10 * step).to(dtype)).nan_to_num()
        apart = (grid.steps(x) - grid.steps(y)).abs().double()
        assert bool((apart <= (x.double() - y.double()).abs() / step + WORST_ROUNDING).all())


@pytest.mark.parametrize("step", STEPS)
def test_what_lies_on_the_grid_stays_where_it_is(step: float) -> None:
    grid, rng = Grid(step), torch.Generator().manual_seed(1)
    for bits in (4, 20, 45, 50):
        whole = torch.randint(-(2**bits), 2**bits + 1, (5000,), generator=rng)
        assert torch.equal(grid.steps(grid.values(whole)), whole)
    edges = torch.tensor([int(LARGEST), -int(LARGEST), int(LARGEST) - 1])
    assert torch.equal(grid.steps(grid.values(edges)), edges)


def test_coordinates_far_out_are_cut_off_not_wrapped() -> None:
    far = torch.tensor([1e300, -1e300, torch.inf, -torch.inf], dtype=torch.float64)
    assert Grid(1e-9).steps(far).tolist() == [int(LARGEST), -int(LARGEST)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_leaves_its_argument_alone(dtype: torch.dtype) -> None:
    x = torch.randn(100, dtype=dtype)
    before = x.clone()
    assert torch.equal(Grid(1e-5).round(x).long(), Grid(1e-5).steps(x))
    assert torch.equal(x, before)


def part(values: Tensor, grid: Grid | None) -> ClippedSum:
    return ClippedSum(blocks={"a": values[:7], "b": values[7:].view(1, -1)}, sensitivity=1.0, grid=grid)


def test_micro_batches_add_up_to_the_same_bits_in_any_order_and_grouping() -> None:
    rng = torch.Generator().manual_seed(2)
    rows = [torch.randn(20, generator=rng) * 10.0**k for k in (-3, 0, 3, 0, -6)]
    grid = Grid(2.0**-26 * 1.37)
    results = []
    for order in itertools.permutations(rows):
        first, *others = [part(row, grid) for row in order]
        for other in others:
            first = first + other
        results.append(first)
    a, b, c, d, e = (part(row, grid) for row in rows)
    results.append((a + b) + (c + (d + e)))
    for result in results:
        assert result.grid == grid
        assert torch.equal(result.blocks["a"], results[0].blocks["a"])
        assert torch.equal(result.blocks["b"], results[0].blocks["b"])
    exact = torch.stack([grid.steps(row) for row in rows]).sum(0)
    assert torch.equal(grid.steps(results[0].blocks["a"]), exact[:7])
    single = [functools.reduce(torch.add, order) for order in itertools.permutations(rows)]
    assert any(not torch.equal(single[0], other) for other in single), "float32 would have shown the order"


def test_a_sum_remembers_in_which_precision_it_is_released() -> None:
    half, single = torch.ones(9, dtype=torch.bfloat16), torch.ones(9, dtype=torch.float64)
    assert part(half, None).released_in("a") == torch.float32
    assert part(single, Grid(1.0)).released_in("b") == torch.float64
    summed = part(torch.ones(9), Grid(0.5)) + part(torch.ones(9), Grid(0.5))
    assert summed.blocks["a"].dtype == torch.float64
    assert summed.released_in("a") == torch.float32


def test_sums_on_different_grids_are_not_added() -> None:
    with pytest.raises(AssertionError, match="share one clip"):
        part(torch.ones(9), Grid(1.0)) + part(torch.ones(9), Grid(2.0))
