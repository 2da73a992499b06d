"""Scaled rows that are not formed: norms never below the truth, exact sums, one sample within its clip."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.convolution import KEPT, ConvGrad
from quietgrad._kernels.patches import Window
from quietgrad._representations.preconditioned.input_map import input_map
from quietgrad._representations.preconditioned.layer_scale import MatrixScale
from quietgrad._representations.preconditioned.scaled_rows import ScaledRows

OUT, IN, SIDE = 6, 3, 8


def window() -> Window:
    return Window(torch.Size((OUT, IN, 3, 3)), (1, 1), (1, 1), (1, 1), 1)


def conv_grad(n: int, algorithm: str, seed: int = 0) -> ConvGrad:
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 1, IN, SIDE, SIDE, generator=rng) + 0.7
    backprops = torch.randn(n, 1, OUT, SIDE, SIDE, generator=rng)
    return ConvGrad(inputs, backprops, window(), algorithm=algorithm)


def scale(damping: float = 0.5, *, with_bias: bool = True) -> MatrixScale:
    width = IN * 9 + with_bias
    rng = torch.Generator().manual_seed(1)
    a = torch.randn(400, width, generator=rng, dtype=torch.float64) + 0.7
    inputs, spread = input_map(a.T @ a, power=0.5, damping=damping, with_bias=with_bias, like=torch.zeros(1))
    return MatrixScale(inputs, spread=spread)


def reference(made: MatrixScale, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
    """P as a matrix in float64, times formed rows."""
    p = made.inputs
    directions = p.directions if p.unit is None else torch.cat([p.directions, p.unit[None]])
    whole = p.base * torch.eye(p.size, dtype=torch.float64)
    whole += directions.double() * p.gains.double() @ directions.double().T
    if p.unit is None:
        return rows.flatten(2).double() @ whole, None
    mapped = torch.cat([rows.flatten(2), bias[:, :, None]], 2).double() @ whole
    return mapped[:, :, :-1], mapped[:, :, -1]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("algorithm", [name for name in KEPT if name != "direct"])
def test_norms_sums_and_rows_equal_those_of_formed_gradients(algorithm: str, with_bias: bool) -> None:
    n, made = 37, scale(with_bias=with_bias)
    block = conv_grad(n, algorithm)
    bias = block.backprops.flatten(3).sum((1, 3))
    weight, last = made.encode(block, qg.DenseGrad(bias))
    assert isinstance(weight, ScaledRows)
    expected, expected_last = reference(made, conv_grad(n, "chunked").dense(), bias)
    truth = expected.square().sum((1, 2))
    assert bool((weight.squared_norms() >= truth * (1 - 1e-6)).all())
    assert bool((weight.squared_norms() <= truth * 1.01).all())
    torch.testing.assert_close(weight.dense().flatten(2).double(), expected, rtol=1e-4, atol=1e-4)
    weights = torch.rand(n)
    total = torch.einsum("n,noi->oi", weights.double(), expected).reshape(block.shape)
    torch.testing.assert_close(weight.weighted_sum(weights).double(), total, rtol=1e-4, atol=1e-4)
    if expected_last is not None:
        assert last is not None
        torch.testing.assert_close(last.dense().double(), expected_last, rtol=1e-4, atol=1e-4)


def test_a_row_that_is_no_number_adds_nothing_at_weight_zero() -> None:
    block = conv_grad(5, "patches")
    block.inputs[2] = float("nan")
    weight, _ = scale().encode(block, qg.DenseGrad(torch.ones(5, OUT)))
    norms = weight.squared_norms()
    assert not bool(norms[2].isfinite())
    weights = torch.ones(5)
    weights[2] = 0.0
    assert bool(weight.weighted_sum(weights).isfinite().all())


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e9])
def test_one_sample_moves_a_clipped_sum_by_the_clip_at_most(size: float) -> None:
    """Rows along the direction that P shrinks most: what is small beside G is largest beside the scaled row."""
    made = scale(damping=0.01, with_bias=False)
    strongest = made.inputs.directions[:, :1].T.reshape(IN, 3, 3)
    inputs = torch.zeros(33, 1, IN, SIDE, SIDE)
    inputs[:, 0, :, 2:5, 2:5] = size * strongest
    backprops = torch.zeros(33, 1, OUT, SIDE, SIDE)
    backprops[:, 0, :, 3, 3] = torch.randn(33, OUT, generator=torch.Generator().manual_seed(2))

    def clipped(rows: slice) -> Tensor:
        block = ConvGrad(inputs[rows], backprops[rows], window(), algorithm="patches")
        weight, _ = made.encode(block, None)
        assert isinstance(weight, ScaledRows)
        grads = qg.BlockwiseGrads({"w": weight}, weight.samples)
        return qg.FlatClip(1.0)(grads, 0).blocks["w"].double()

    for left_out in (0, 32):
        rest = slice(1, 33) if left_out == 0 else slice(0, 32)
        assert float((clipped(slice(0, 33)) - clipped(rest)).norm()) <= 1.0
