"""Gradients of tables in C are the reference's, in other order; equal ids of a sample are added up once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.indexed import IndexedGrad, table_pairs, table_sums
from quietgrad._kernels import levels
from quietgrad._kernels.library import has_function

pytestmark = pytest.mark.skipif(
    not levels.levels() or not has_function("qg_table_pairs"), reason="the C library was not built"
)
LEVELS = levels.levels()
TABLE = 11
SIZES = [(1, 1, 1), (5, 7, 3), (4, 40, 16), (3, 600, 33)]
"""Samples, positions, width: few and many positions beside the rows of the table."""


def made(size: tuple[int, int, int], *, shuffled: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    n, t, o = size
    g = torch.Generator().manual_seed(sum(size))
    ids, owner = torch.randint(0, TABLE, (n * t,), generator=g), torch.arange(n).repeat_interleave(t)
    values = torch.randn(n * t, o, generator=g)
    order = torch.randperm(n * t, generator=g) if shuffled else slice(None)
    return ids[order], owner[order], values[order]


def in_order(ids: Tensor, owner: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    keys, order = (owner * TABLE + ids).sort()
    return keys, values[order]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pairs_are_those_of_the_reference(size: tuple[int, int, int], shuffled: bool, level: str) -> None:
    entries = made(size, shuffled=shuffled)
    with levels.use_level("off"):
        expected = in_order(*table_pairs(*entries, size[0], TABLE)[:3])
    with levels.use_level(level):
        assert table_pairs.find_kernel(*entries, size[0], TABLE) is not None
        ids, owner, values, squares = table_pairs(*entries, size[0], TABLE)
    keys, found = in_order(ids, owner, values)
    assert torch.equal(keys, expected[0])
    assert torch.equal(found, expected[1])  # the order of additions is the same
    assert bool((owner[1:] >= owner[:-1]).all())
    truth = torch.zeros(size[0], dtype=torch.float64).index_add_(0, owner, values.double().square().sum(1))
    assert bool((squares >= truth * (1 - 1e-15)).all())
    torch.testing.assert_close(squares, truth, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_are_those_of_the_reference(size: tuple[int, int, int], level: str) -> None:
    weights = torch.rand(size[0], dtype=torch.float64)
    found = []
    for each in ("off", level):
        with levels.use_level(each):
            block = IndexedGrad(*made(size), samples=size[0], table=TABLE)
            found.append(block.weighted_sum(weights))
    torch.testing.assert_close(found[1], found[0], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sample_of_weight_zero_adds_exactly_zero(value: float, level: str) -> None:
    ids, owner, values = made((5, 7, 3))
    weights = torch.tensor([0.5, 0.25, 0.0, 1.0, 0.75]).double()
    clean = values.masked_fill((owner == 2)[:, None], 0.0)
    values[15] = value
    found = []
    with levels.use_level(level):
        for each in (values, clean):
            total = torch.zeros(TABLE, 3, dtype=torch.float64)
            table_sums(ids, owner, each, weights, total)
            found.append(total)
    assert torch.equal(*found)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sample_that_is_not_a_number_has_no_finite_norm(level: str) -> None:
    ids, owner, values = made((5, 7, 3))
    values[15] = float("nan")
    with levels.use_level(level):
        squares = IndexedGrad(ids, owner, values, samples=6, table=TABLE).squared_norms()
    assert squares.isfinite().tolist() == [True, True, False, True, True, True]
    assert squares[5] == 0.0  # who reads nothing
