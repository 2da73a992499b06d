"""A LayerNorm's gradients in C are those of the reference at every level, in the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._capture.adapters.norm import norm_gradients
from quietgrad._kernels import levels

pytestmark = pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
LEVELS = levels.levels()
SIZES = [(1, 1, 1), (3, 5, 7), (2, 64, 256), (4, 3, 33)]
"""Samples, positions, numbers."""


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(sum(size))
    x, b = torch.randn(size, generator=g), torch.randn(size, generator=g)
    return x, b, torch.randn(size[:2], generator=g), torch.rand(size[:2], generator=g) + 0.5


def in_c(level: str, *parts: Tensor) -> tuple[Tensor, Tensor]:
    with levels.use_level(level):
        assert norm_gradients.find_kernel(*parts) is not None
        return norm_gradients(*parts)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_are_those_of_float64(size: tuple[int, int, int], level: str) -> None:
    x, b, mean, scale = drawn(size)
    weight, bias = in_c(level, x, b, mean, scale)
    normal = (x.double() - mean[..., None].double()) * scale[..., None].double()
    torch.testing.assert_close(weight.double(), (b.double() * normal).sum(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(bias.double(), b.double().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_levels_threads_and_strides_do_not_touch_the_bits(size: tuple[int, int, int]) -> None:
    x, b, mean, scale = drawn(size)
    turned = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in (x, b, mean, scale)]
    found, before = [], torch.get_num_threads()
    try:
        for level in LEVELS:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                found += [in_c(level, x, b, mean, scale), in_c(level, *turned)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(mine, first) for each in found for mine, first in zip(each, found[0], strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_a_sample_that_is_not_a_number_stays_alone(level: str) -> None:
    x, b, mean, scale = drawn((4, 3, 6))
    x[2, 1, 3] = float("nan")
    weight, bias = in_c(level, x, b, mean, scale)
    assert weight.isfinite().all(1).tolist() == [True, True, False, True]
    assert bool(bias.isfinite().all())


@pytest.mark.parametrize("level", ["off", *LEVELS])
def test_a_layers_gradients_are_the_loops(level: str) -> None:
    layer, x = nn.LayerNorm(6), torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
    batches = qg.PoissonBatches(torch.utils.data.TensorDataset(x), rate=1.0, steps=1)
    private = qg.Privatizer(layer, qg.methods.dp_sgd(clip=1e3).with_noise(0.0), batches)
    with levels.use_level(level):
        for batch in batches:
            ((rows,),) = batch.split(4)
            private.backward(layer(rows).square().sum((1, 2)))
            private.release()
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    found = [layer.weight.grad.clone(), layer.bias.grad.clone()]
    private.close()
    expected = torch.autograd.grad(layer(x).square().sum() / 4, [layer.weight, layer.bias])
    torch.testing.assert_close(found, list(expected), rtol=1e-5, atol=1e-5)


def test_half_precision_takes_the_torch_path() -> None:
    with levels.use_level(LEVELS[-1]):
        assert norm_gradients.find_kernel(*drawn((2, 3, 4))) is not None
        half = [part.half() for part in drawn((2, 3, 4))]
        assert norm_gradients.find_kernel(*half) is None
    with levels.use_level("off"):
        assert norm_gradients.find_kernel(*drawn((2, 3, 4))) is None
