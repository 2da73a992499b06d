"""A gradient whose coordinate along the basis is rounded up: its residual passes for shorter than it is.

Equal numbers that are added up in float32 drift by as much as 0.3% over a million of them, up or down as their scale
says. GEP took the residual's length from ‖g‖² − ‖w‖² with w a float32 sum, and ‖B‖ = 1 from another one. Where a level
public direction passed for orthonormal (0.03% off at 430,121 parameters), a record along it, scaled so that w drifts
upwards, moved the residual's sum by 1.0001 of the clip, all of the margin of 0.7% used up. Many other level directions
stopped the run: "the basis is not orthonormal".
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.row_arithmetic import ACCURACY, inner_products
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.clipping import FlatClip
from quietgrad._representations.subspace.basis import Basis, GroupBasis
from quietgrad._representations.subspace.orthonormal import orthonormal_rows
from quietgrad._representations.subspace.residual import LARGEST, ResidualCodec
from quietgrad._representations.subspace.subspace import SubspaceCodec

SCALES = [1 + step / 24 for step in range(24)]


def level_basis(space: Space, *, rank: int) -> Basis:
    """The first direction is level, as the public gradient of a constant feature is; the others are random."""
    size = sum(shape.numel() for shape in space.values())
    rows = torch.randn(rank, size, generator=torch.Generator().manual_seed(0))
    rows -= rows.mean(1, keepdim=True)
    rows[0] = 1.0
    return Basis({"all": GroupBasis(*orthonormal_rows(rows), space)})


def moved_by(grads: BlockwiseGrads, basis: Basis, space: Space, clip: float) -> float:
    """How far the first record, the only one that is not zero, moves the residual's sum."""
    codec = ResidualCodec(SubspaceCodec(basis, []), space, clip)
    total = FlatClip(clip)(codec.encode(grads), 0)
    return math.sqrt(sum(float(block.double().square().sum()) for block in total.blocks.values()))


def spiked(size: int) -> Tensor:
    """Level but for two entries that cancel along the basis: a residual of a tenth of the length."""
    row = torch.ones(size)
    spike = math.sqrt(size / (2 * (LARGEST**2 - 1)))
    row[-2], row[-1] = row[-2] + spike, row[-1] - spike
    return row


@pytest.mark.parametrize(("samples", "rank"), [(1, 1), (8, 1), (8, 8)])
@pytest.mark.parametrize("size", [280_066, 430_121, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_level_gradient_is_no_longer_than_the_clip(size: int, samples: int, rank: int) -> None:
    space = Space.of_shapes({"v": torch.Size((size,))})
    basis = level_basis(space, rank=rank)
    worst = 0.0
    for scale in SCALES:
        rows = torch.zeros(samples, size)
        rows[0] = scale * spiked(size)
        clip = float(rows[0].double().norm()) / LARGEST
        worst = max(
            worst, moved_by(BlockwiseGrads({"v": DenseGrad(rows)}, samples), basis, space, clip) / clip
        )
    assert worst <= 1.0


@pytest.mark.parametrize("samples", [1, 8])
def test_nor_is_one_that_is_never_formed(samples: int) -> None:
    """The same as an outer product of a linear layer."""
    outputs, inputs = 200, 2000
    space = Space.of_shapes({"w": torch.Size((outputs, inputs))})
    basis = level_basis(space, rank=4)
    worst = 0.0
    for scale in SCALES:
        a, b = torch.zeros(samples, 1, inputs), torch.zeros(samples, 1, outputs)
        a[0, 0] = scale * spiked(inputs)
        b[0, 0] = 1.0
        clip = float(a[0].double().norm() * b[0].double().norm()) / LARGEST
        grads = BlockwiseGrads({"w": FactoredGrad(a, b)}, samples)
        worst = max(worst, moved_by(grads, basis, space, clip) / clip)
    assert worst <= 1.0


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5_000, 400_000])
def test_inner_products_are_as_accurate_as_they_say(size: int) -> None:
    rng = torch.Generator().manual_seed(1)
    level = torch.ones(24, size) * torch.tensor(SCALES)[:, None]
    rows = torch.cat([level, torch.randn(4, size, generator=rng)])
    directions = torch.cat([torch.ones(1, size) / math.sqrt(size), torch.randn(3, size, generator=rng)])
    true = rows.double() @ directions.double().T
    lengths = rows.double().norm(dim=1)[:, None] * directions.double().norm(dim=1)
    assert float(((inner_products(rows, directions) - true).abs() / lengths).amax()) <= ACCURACY
