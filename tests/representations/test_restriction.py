"""Restricted gradients of every kind equal the dense ones with coordinates taken out."""

from __future__ import annotations

import pytest
import torch

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._kernels.patches import Window
from quietgrad._representations.masks.restricted import RestrictedOuterGrad, WholeNormGrad
from quietgrad._representations.masks.restriction import Kept, restrict, whole_rows
from quietgrad._representations.subspace.projections import project

N = 7


def blocks() -> dict[str, BlockGrads]:
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    window = Window(kernel=torch.Size((5, 2, 3, 3)), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    ids, owner = torch.tensor([0, 3, 3, 5, 1, 0]), torch.tensor([0, 0, 0, 1, 4, 6])
    return {
        "dense": DenseGrad(normal(N, 6, 4)),
        "outer": FactoredGrad(normal(N, 1, 4), normal(N, 1, 6)),
        "tokens": FactoredGrad(normal(N, 3, 4), normal(N, 3, 6)),
        "conv": ConvGrad(normal(N, 1, 2, 6, 6), normal(N, 1, 5, 6, 6), window),
        "table": IndexedGrad(ids, owner, normal(6, 3), samples=N, table=9),
    }


def kept_of(block: BlockGrads, which: str) -> torch.Tensor:
    size, width = block.shape.numel(), block.shape[1:].numel()
    if which == "all":
        return torch.arange(size)
    if which == "rows":
        return torch.cat([torch.arange(row * width, (row + 1) * width) for row in (0, 3, 4)])
    rng = torch.Generator().manual_seed(1)
    return torch.randperm(size, generator=rng)[: size // 3].sort().values


@pytest.mark.parametrize("which", ["random", "rows", "all"])
@pytest.mark.parametrize("kind", list(blocks()))
def test_norms_sums_and_rows_are_those_of_the_kept_coordinates(kind: str, which: str) -> None:
    block = blocks()[kind]
    kept = kept_of(block, which)
    masked = restrict(block, Kept.of(kept, block.shape))
    reference = block.dense().flatten(1)[:, kept]
    weights = torch.linspace(-1, 1, N, dtype=torch.float64)
    assert masked.shape == (len(kept),)
    assert masked.samples == N
    assert torch.allclose(masked.dense().flatten(1), reference)
    assert torch.allclose(masked.weighted_sum(weights), weights @ reference)
    norms, true = masked.squared_norms(), reference.square().sum(1)
    assert torch.allclose(norms, true, rtol=1e-6)
    directions = torch.randn(4, len(kept), dtype=torch.float64)
    assert torch.allclose(project(masked, directions), reference @ directions.T)


def test_one_position_forms_nothing_and_whole_channels_stay_factored() -> None:
    outer, conv = blocks()["outer"], blocks()["conv"]
    assert isinstance(restrict(outer, Kept.of(torch.tensor([1, 5]), outer.shape)), RestrictedOuterGrad)
    kept = kept_of(outer, "rows")
    assert isinstance(restrict(outer, Kept.of(kept, outer.shape)), FactoredGrad)
    kept = kept_of(conv, "rows")
    assert isinstance(restrict(conv, Kept.of(kept, conv.shape)), WholeNormGrad)


def test_whole_rows_recognises_channels_and_nothing_else() -> None:
    shape = torch.Size((4, 3))
    assert whole_rows(torch.tensor([3, 4, 5, 9, 10, 11]), shape).tolist() == [1, 3]  # type: ignore[union-attr]
    assert whole_rows(torch.tensor([2, 3, 4]), shape) is None
    assert whole_rows(torch.tensor([3, 4, 6]), shape) is None
    assert whole_rows(torch.tensor([3, 4]), shape) is None
    assert whole_rows(torch.tensor([0, 1]), torch.Size((4,))) is None


def test_a_small_factor_does_not_hide_behind_a_large_one() -> None:
    """b² underflows in float32 and a² nearly overflows; their product is an ordinary gradient."""
    a, b = torch.full((1, 1, 64), 1e19), torch.full((1, 1, 64), 3e-23)
    block = FactoredGrad(a, b)
    kept = torch.arange(0, 64 * 64, 3)
    norm = float(RestrictedOuterGrad(block, a[:, 0], b[:, 0], kept).squared_norms())
    assert norm == pytest.approx(9e-8 * len(kept), rel=1e-5)


def test_the_norm_counted_whole_is_never_below_what_is_summed() -> None:
    for block in blocks().values():
        kept = kept_of(block, "random")
        masked = WholeNormGrad(block, kept)
        assert torch.allclose(masked.squared_norms(), block.dense().flatten(1).square().sum(1), rtol=1e-6)
        assert bool((masked.squared_norms() >= masked.dense().square().sum(1)).all())
