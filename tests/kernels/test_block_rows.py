"""Norms and sums of many small blocks at once are float64's, in torch and at every level of the C kernels."""

from __future__ import annotations

import pytest
import torch

from quietgrad._gradients.blocks import BlockGrads, DenseGrad, fuse
from quietgrad._gradients.factored import SMALL_PRODUCT, FactoredGrad
from quietgrad._gradients.small_blocks import block_norms, block_sums
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._kernels import levels
from quietgrad._kernels.block_rows import Factors
from quietgrad._kernels.library import has_function
from quietgrad._mechanism.clipping import FlatClip

LEVELS = ("off", *(levels.levels() if levels.levels() and has_function("qg_block_norms") else ()))
SIZES = [(1, 1, 1), (3, 31, 5), (5, 33, 40), (64, 100, 80), (7, 4, 300)]
"""Samples, inputs, outputs: in whole vectors and groups of four rows and not."""


def made(size: tuple[int, int, int]) -> tuple[list[Factors], torch.Tensor]:
    """A layer with its bias, which shares the rows b, and a scale that shares nothing."""
    n, i, o = size
    g = torch.Generator().manual_seed(sum(size))
    a, b, scale = (torch.randn(n, width, generator=g) for width in (i, o, 3))
    return [(a, b), (None, b), (None, scale)], torch.rand(n, generator=g).double()


def formed(blocks: list[Factors]) -> torch.Tensor:
    """Every sample's gradients in float64, side by side."""
    rows = [
        b.double() if a is None else torch.einsum("no,ni->noi", b.double(), a.double()).flatten(1)
        for a, b in blocks
    ]
    return torch.cat(rows, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_norms_and_sums_are_those_of_float64(size: tuple[int, int, int], level: str) -> None:
    blocks, weights = made(size)
    with levels.use_level(level):
        assert (block_norms.find_kernel(blocks) is None) == (level == "off")
        assert (block_sums.find_kernel(blocks, weights) is None) == (level == "off")
        norms, sums = block_norms(blocks), block_sums(blocks, weights)
    rows = formed(blocks)
    truth = rows.square().sum(1)
    assert bool((norms >= truth * (1 - 1e-15)).all())
    torch.testing.assert_close(norms, truth, rtol=3e-5, atol=0.0)
    torch.testing.assert_close(
        sums, weights @ rows, rtol=1e-6 if level == "off" else 1e-12, atol=1e-5 if level == "off" else 1e-13
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_level_gives_the_same_bits(size: tuple[int, int, int]) -> None:
    blocks, weights = made(size)
    found = []
    for level in LEVELS[1:]:
        with levels.use_level(level):
            found.append(torch.cat([block_norms(blocks), block_sums(blocks, weights)]))
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("of", [0, 1])
def test_a_row_of_weight_zero_adds_exactly_zero(of: int, value: float, level: str) -> None:
    blocks, weights = made((9, 6, 5))
    weights[4] = 0.0
    clean = [(None if a is None else a.clone(), b.clone()) for a, b in blocks]
    for factors in clean:
        for rows in factors:
            if rows is not None:
                rows[4] = 0.0
    spoilt = blocks[0][of]
    assert spoilt is not None
    spoilt[4] = value
    with levels.use_level(level):
        assert torch.equal(block_sums(blocks, weights), block_sums(clean, weights))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e25, 3e38])
def test_nothing_is_lost_to_float32s_range(scale: float, level: str) -> None:
    a, b = torch.full((2, 40), scale), torch.full((2, 3), scale)
    weights = torch.tensor([1.0, 1e-60]).double()
    with levels.use_level(level):
        norms, sums = block_norms([(a, b)]), block_sums([(a, b)], weights)
    product = float(a[0, 0]) * float(b[0, 0])
    assert bool((norms >= 120 * product**2 * (1 - 1e-14)).all())
    torch.testing.assert_close(sums, torch.full((120,), product, dtype=torch.float64), rtol=1e-12, atol=0.0)


def layers(*sizes: tuple[int, int]) -> dict[str, BlockGrads]:
    n, blocks = 64, dict[str, BlockGrads]()
    for number, (i, o) in enumerate(sizes):
        b = torch.randn(n, 1, o)
        blocks |= {
            f"{number}.weight": FactoredGrad(torch.randn(n, 1, i), b),
            f"{number}.bias": DenseGrad(b[:, 0]),
        }
    return blocks


def test_small_layers_are_fused_and_large_ones_are_not() -> None:
    assert 64 * 30 * 20 <= SMALL_PRODUCT < 64 * 300 * 200
    (fused,) = fuse(layers((30, 20), (300, 200), (20, 5)))
    assert fused == ("0.weight", "0.bias", "1.bias", "2.weight", "2.bias")


def test_a_clipped_sum_is_that_of_blocks_by_themselves() -> None:
    blocks = layers((30, 20), (300, 200), (20, 5))
    total = FlatClip(0.7)(BlockwiseGrads(blocks, 64), 0).blocks
    norms = torch.stack([block.squared_norms() for block in blocks.values()]).sum(0).sqrt()
    weights = (0.995 * 0.7 / norms).clamp_max(1.0)
    for name, block in blocks.items():
        expected = (weights.float() @ block.dense().flatten(1)).reshape(block.shape)
        torch.testing.assert_close(total[name].float(), expected, rtol=1e-4, atol=1e-5)
