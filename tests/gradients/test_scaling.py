"""Scaled gradients of every kind equal the dense ones between two matrices; factors stay factors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.tied import TiedGrad
from tests.representations.test_low_rank_products import BLOCKS, N, double, indexed_block

KINDS = {
    **BLOCKS,
    "vector": lambda: DenseGrad(double(N, 6)),
    "scalar": lambda: DenseGrad(double(N)),
    "tied": lambda: TiedGrad(indexed_block(), FactoredGrad(double(N, 3, 5), double(N, 3, 9))),
}
SIDES = ("none", "diagonal", "matrix")


def side(which: str, size: int) -> Tensor | None:
    if which == "none":
        return None
    return double(size) if which == "diagonal" else double(size, size)


def as_matrix(scale: Tensor | None, size: int) -> Tensor:
    if scale is None:
        return torch.eye(size, dtype=torch.float64)
    return torch.diag(scale) if scale.dim() == 1 else scale


@pytest.mark.parametrize("right", SIDES)
@pytest.mark.parametrize("left", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_norms_sums_and_rows_are_those_of_the_product(kind: str, left: str, right: str) -> None:
    block: BlockGrads = KINDS[kind]()
    o = block.shape[0] if block.shape else 1
    i = block.shape.numel() // o
    before, after = side(left, o), side(right, i)
    scaled = block.scale(left=before, right=after)
    matrices = block.dense().reshape(N, o, i)
    expected = (as_matrix(before, o) @ matrices @ as_matrix(after, i)).reshape(N, *block.shape)
    weights = torch.rand(N, dtype=torch.float64)
    assert scaled.shape == block.shape
    torch.testing.assert_close(scaled.dense(), expected)
    torch.testing.assert_close(scaled.weighted_sum(weights), torch.einsum("n,n...->...", weights, expected))
    torch.testing.assert_close(
        scaled.squared_norms(), expected.reshape(N, -1).square().sum(1), rtol=1e-6, atol=1e-12
    )


def test_factors_and_touched_rows_stay_what_they_are() -> None:
    tokens, table, conv = KINDS["tokens"](), KINDS["indexed"](), KINDS["conv"]()
    for left in ("none", "diagonal", "matrix"):
        assert isinstance(tokens.scale(left=side(left, 6), right=double(7, 7)), FactoredGrad)
        assert isinstance(conv.scale(left=side(left, 6), right=double(36, 36)), FactoredGrad)
    assert isinstance(table.scale(left=double(9), right=double(5, 5)), IndexedGrad)


@pytest.mark.parametrize("tokens", [1, 16])
def test_a_row_is_the_same_to_the_last_bit_whoever_else_is_in_the_batch(tokens: int) -> None:
    a, b = 1e6 + torch.randn(64, tokens, 300), torch.randn(64, tokens, 40)
    right = torch.randn(300, 300)
    whole = FactoredGrad(a, b).scale(right=right).dense()
    for count in (63, 32, 3):
        assert torch.equal(whole[:count], FactoredGrad(a[:count], b[:count]).scale(right=right).dense())
