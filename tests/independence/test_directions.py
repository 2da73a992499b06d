"""Inner products with random directions: those of the formed gradients, for every kind of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._independence import directions
from quietgrad._independence.directions import Direction, along
from quietgrad._kernels.patches import Window
from tests.cases.gradients import KINDS, KindCase


def compare(block: BlockGrads) -> None:
    generator = torch.Generator().manual_seed(0)
    direction = Direction.draw(block.shape, block.device, generator)
    formed = direction.formed(block).double()
    expected = block.dense().double().flatten(1) @ formed.flatten()
    scale = block.dense().double().flatten(1).norm(dim=1) * formed.norm()
    assert ((along(block, direction) - expected).abs() <= 1e-5 * scale + 1e-12).all()


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_an_inner_product_is_that_of_the_formed_gradients(case: KindCase) -> None:
    compare(case.build(case.draw(5, torch.Generator().manual_seed(1))))


def test_an_inner_product_with_any_window() -> None:
    """Strides that leave a rest, padding, dilation, groups, and two positions of a sample."""
    window = Window(torch.Size((6, 2, 3, 2)), (2, 1), (1, 0), (1, 2), 2)
    x = torch.randn(5, 2, 4, 8, 9)
    out = torch.nn.functional.conv2d(
        x.flatten(0, 1), torch.zeros(window.kernel), None, (2, 1), (1, 0), (1, 2), 2
    )
    compare(ConvGrad(x, torch.randn(5, 2, *out.shape[1:]), window))


def test_convolutions_are_taken_a_few_samples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five samples at a time, and one in the end, give what all of them give at once."""
    window = Window(torch.Size((6, 3, 3, 3)), (1, 1), (1, 1), (1, 1), 1)
    block = ConvGrad(torch.randn(5, 1, 3, 8, 8), torch.randn(5, 1, 6, 8, 8), window)
    direction = Direction.draw(block.shape, block.device, torch.Generator().manual_seed(0))
    whole = along(block, direction)
    widened: list[int] = []
    convolution = torch.convolution

    def counted(inputs: torch.Tensor, *rest: Any) -> torch.Tensor:
        widened.append(len(inputs))
        return convolution(inputs, *rest)

    monkeypatch.setattr(directions, "AT_ONCE", 2 * 9 * 64 + 1)
    monkeypatch.setattr(torch, "convolution", counted)
    assert torch.allclose(along(block, direction), whole, rtol=1e-6)
    assert widened == [2, 2, 1]


def test_directions_are_as_long_as_gaussian_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(
        [
            Direction.draw(torch.Size((30, 4, 5)), torch.device("cpu"), generator).left.norm() ** 2
            for _ in range(200)
        ]
    )
    assert abs(lengths.mean() - 30) < 1
