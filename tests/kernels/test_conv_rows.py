"""Kernel gradients in C are those of the reference at every level and stride; norms are never below the truth."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.kernel_gradients import by_patches, kernel_gradients
from quietgrad._kernels import levels
from quietgrad._kernels.patches import Window
from tests.cases.gradients import KINDS
from tests.laws.test_law2_floating_point import distances, scales

pytestmark = pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
LEVELS = levels.levels()

Movement = tuple[int, int, int, int, tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]
"""Images, channels, size, outputs, kernel, stride, padding, dilation."""

MOVEMENTS: list[Movement] = [
    (1, 3, 7, 5, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 9, 8, 7, (2, 5), (2, 1), (0, 2), (1, 1)),
    (1, 16, 9, 8, (3, 3), (1, 2), (2, 2), (2, 2)),
    (1, 1, 28, 16, (8, 8), (2, 2), (3, 3), (1, 1)),
    (3, 24, 5, 1, (1, 1), (2, 2), (0, 0), (1, 1)),
    (1, 24, 33, 6, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 13, 6, 3, (3, 3), (1, 1), (1, 1), (1, 3)),
]


def drawn(movement: Movement, n: int = 3) -> tuple[Tensor, Tensor, Window]:
    images, channels, size, outputs, kernel, stride, padding, dilation = movement
    g = torch.Generator().manual_seed(n)
    space = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)
    ]
    inputs = torch.randn(n, images, channels, size, size, generator=g)
    window = Window(torch.Size((outputs, channels, *kernel)), stride, padding, dilation, 1)
    return inputs, torch.randn(n, images, outputs, *space, generator=g), window


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outputs", [8, 13])
def test_gradients_that_go_past_the_caches_are_the_same(outputs: int, level: str) -> None:
    """A million numbers of gradients, for which AVX-512 takes other stores and adds squares on the way."""
    n = (1 << 20) // (outputs * 16 * 16) + 1
    inputs, backprops, window = drawn((1, 16, 9, outputs, (4, 4), (2, 2), (0, 0), (1, 1)), n)
    truth = by_patches(inputs.double(), backprops.double(), window)
    with levels.use_level(level):
        rows, squared = kernel_gradients(inputs, backprops, window)
        few, few_squared = kernel_gradients(inputs[:3], backprops[:3], window)
    torch.testing.assert_close(rows.double(), truth, rtol=1e-4, atol=1e-4)
    assert torch.equal(rows[:3], few)
    torch.testing.assert_close(squared[:3], few_squared, rtol=1e-12, atol=0.0)
    exact = rows.double().square().sum((1, 2))
    assert bool((squared >= exact).all())
    assert bool((squared <= exact * (1 + 1e-9)).all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("movement", MOVEMENTS, ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_rows_are_those_of_the_reference_and_norms_not_below_theirs(
    movement: Movement, n: int, level: str
) -> None:
    inputs, backprops, window = drawn(movement, n)
    truth = by_patches(inputs.double(), backprops.double(), window)
    with levels.use_level(level):
        rows, squared = kernel_gradients(inputs, backprops, window)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.double(), truth, rtol=1e-4, atol=1e-4)
    exact = rows.double().square().sum((1, 2))
    assert bool((squared >= exact).all())
    assert bool((squared <= exact * (1 + 1e-9)).all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["channels_last", "transposed", "expanded", "sliced"])
def test_rows_do_not_depend_on_where_numbers_lie(kind: str, level: str) -> None:
    inputs, backprops, window = drawn(MOVEMENTS[0])
    layouts = {
        "channels_last": lambda x: x.movedim(2, -1).contiguous().movedim(-1, 2),
        "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
        "expanded": lambda x: x[:1].expand(3, *x.shape[1:]),
        "sliced": lambda x: torch.cat([x, x], 4)[..., : x.shape[4]],
    }
    inputs, backprops = (layouts[kind](x) for x in (inputs, backprops))
    with levels.use_level(level):
        rows, squared = kernel_gradients(inputs, backprops, window)
        same, norms = kernel_gradients(inputs.contiguous(), backprops.contiguous(), window)
    assert torch.equal(rows, same)
    assert torch.equal(squared, norms)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_that_is_not_a_number_stays_alone_and_is_dropped(level: str) -> None:
    inputs, backprops, window = drawn(MOVEMENTS[0])
    inputs[1, 0, 0, 0, 0] = float("nan")
    with levels.use_level(level):
        block = ConvGrad(inputs, backprops, window, algorithm="direct")
        squared = block.squared_norms()
        total = block.weighted_sum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert squared.isfinite().tolist() == [True, False, True]
    assert bool(total.isfinite().all())


@pytest.mark.parametrize("level", LEVELS)
def test_one_sample_moves_the_clipped_sum_by_at_most_the_bound(level: str) -> None:
    case = next(case for case in KINDS if case.name == "conv_direct")
    with levels.use_level(level):
        for seed in range(5):
            tensors = case.draw(9, torch.Generator().manual_seed(seed))
            scale = scales(torch.float32, seed).view(-1, 1, 1, 1, 1)
            tensors["b"] = (tensors["b"].double() * scale).float()
            distances(case, tensors, [1.0, 1e-9, 1e4][seed % 3], range(9), f"{level} seed {seed}")


def test_without_a_kernel_the_algorithm_is_not_offered() -> None:
    inputs, backprops, window = drawn(MOVEMENTS[0])
    with levels.use_level(LEVELS[-1]):
        assert "direct" in ConvGrad(inputs, backprops, window).memory_cost()
        assert "direct" not in ConvGrad(inputs.double(), backprops.double(), window).memory_cost()
    with levels.use_level("off"):
        assert "direct" not in ConvGrad(inputs, backprops, window).memory_cost()
