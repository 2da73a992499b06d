"""Products of per-sample gradients with carriers equal the products of the formed gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.zero import ZeroGrad
from quietgrad._kernels.patches import Window
from quietgrad._representations.low_rank.products import off_rows, times_left, times_right

N, RANK = 5, 2


def conv_block(
    *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1, dims: int = 2
) -> ConvGrad:
    kernel = torch.Size((6, 4 // groups, *[3] * dims))
    inputs = torch.randn(N, 1, 4, *[9] * dims, dtype=torch.float64)
    side = (9 + 2 * padding - dilation * 2 - 1) // stride + 1
    backprops = torch.randn(N, 1, 6, *[side] * dims, dtype=torch.float64)
    return ConvGrad(
        inputs, backprops, Window(kernel, (stride,) * dims, (padding,) * dims, (dilation,) * dims, groups)
    )


def indexed_block() -> IndexedGrad:
    ids = torch.tensor([3, 3, 7, 0, 1, 3, 7, 7])
    owner = torch.tensor([0, 0, 0, 1, 2, 2, 4, 4])
    return IndexedGrad(ids, owner, torch.randn(8, 5, dtype=torch.float64), samples=N, table=9)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


BLOCKS = {
    "dense": lambda: DenseGrad(double(N, 6, 4, 3)),
    "one_token": lambda: FactoredGrad(double(N, 1, 7), double(N, 1, 6)),
    "tokens": lambda: FactoredGrad(double(N, 11, 7), double(N, 11, 6)),
    "flattened_kernel": lambda: FactoredGrad(double(N, 4, 12), double(N, 4, 6), torch.Size((6, 3, 2, 2))),
    "conv": conv_block,
    "conv_strided": lambda: conv_block(stride=2, padding=1),
    "conv_dilated": lambda: conv_block(dilation=2, padding=2),
    "conv_grouped": lambda: conv_block(groups=2),
    "conv1d": lambda: conv_block(dims=1, padding=1),
    "conv3d": lambda: conv_block(dims=3),
    "several_maps": lambda: ConvGrad(
        double(N, 3, 4, 9), double(N, 3, 6, 7), Window(torch.Size((6, 4, 3)), (1,), (0,), (1,), 1)
    ),
    "indexed": indexed_block,
    "unused": lambda: ZeroGrad(N, double(6, 7)),
}


@pytest.fixture(params=BLOCKS, ids=str)
def block(request: pytest.FixtureRequest) -> BlockGrads:
    made: BlockGrads = BLOCKS[request.param]()
    return made


def carriers(block: BlockGrads) -> tuple[Tensor, Tensor, Tensor]:
    matrices = block.dense().flatten(2)
    left = torch.linalg.qr(double(matrices.shape[1], RANK)).Q
    right = torch.linalg.qr(double(matrices.shape[2], RANK)).Q.T
    return matrices, left, right


def test_right_product(block: BlockGrads) -> None:
    matrices, _, right = carriers(block)
    product = times_right(block, right)
    assert product.shape == (matrices.shape[1], RANK)
    torch.testing.assert_close(product.dense(), matrices @ right.T)


def test_left_product(block: BlockGrads) -> None:
    matrices, left, _ = carriers(block)
    product = times_left(block, left)
    assert product.shape == (RANK, matrices.shape[2])
    torch.testing.assert_close(product.dense(), left.T @ matrices)


def test_rows_outside_a_span(block: BlockGrads) -> None:
    matrices, left, right = carriers(block)
    rest = off_rows(times_left(block, left), right)
    expected = left.T @ matrices
    torch.testing.assert_close(rest.dense(), expected - expected @ right.T @ right)


def test_norms_and_sums_are_those_of_the_products(block: BlockGrads) -> None:
    _, left, right = carriers(block)
    weights = torch.rand(N, dtype=torch.float64)
    for product in (times_right(block, right), off_rows(times_left(block, left), right)):
        formed = product.dense()
        torch.testing.assert_close(
            product.squared_norms(), formed.square().sum((1, 2)), rtol=1e-6, atol=1e-12
        )
        torch.testing.assert_close(product.weighted_sum(weights), torch.einsum("n,nxy->xy", weights, formed))


@pytest.mark.parametrize("tokens", [1, 16])
def test_a_row_is_the_same_to_the_last_bit_whoever_else_is_in_the_batch(tokens: int) -> None:
    """Huge near-equal tokens whose output gradients cancel leave rounding only: it must not depend on the batch."""
    a = 1e6 * torch.ones(64, tokens, 300) + torch.randn(64, tokens, 300)
    b = torch.randn(64, tokens, 40)
    b = b - b.mean(1, keepdim=True) if tokens > 1 else b
    left, right = torch.linalg.qr(torch.randn(40, 4)).Q, torch.linalg.qr(torch.randn(300, 4)).Q.T
    for count in (63, 32, 3):
        whole, part = FactoredGrad(a, b), FactoredGrad(a[:count], b[:count])
        assert torch.equal(times_right(whole, right).dense()[:count], times_right(part, right).dense())
        off, off_part = off_rows(times_left(whole, left), right), off_rows(times_left(part, left), right)
        assert torch.equal(off.dense()[:count], off_part.dense())


def test_a_poisoned_sample_stays_alone() -> None:
    a, b = torch.randn(4, 6, 7), torch.randn(4, 6, 5)
    b[2, 3, 1] = float("nan")
    product = times_right(FactoredGrad(a, b), torch.randn(2, 7)).dense()
    assert product[[0, 1, 3]].isfinite().all()
    assert product[2].isnan().any()
