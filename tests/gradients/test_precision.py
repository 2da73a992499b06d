"""Norms are never below the truth of what is summed, whatever cancels, overflows or underflows."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.row_arithmetic import EXCESS, row_squared_norms, weighted_rows
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._gradients.tied import TiedGrad
from quietgrad._kernels.patches import Window
from quietgrad._mechanism.clipping import FlatClip

SEEDS = range(20)


def cancelling(seed: int, n: int = 3, t: int = 16, i: int = 12, o: int = 10) -> tuple[Tensor, Tensor]:
    """Nearly equal tokens whose output gradients sum to zero: the gradient is a small difference of large terms."""
    g = torch.Generator().manual_seed(seed)
    near = 10.0 ** -torch.randint(2, 8, (1,), generator=g).item()
    a = torch.randn(n, 1, i, generator=g) + near * torch.randn(n, t, i, generator=g)
    b = torch.randn(n, t, o, generator=g)
    return a, b - b.mean(1, keepdim=True)


def sensitivity_holds(block: BlockGrads, others: BlockGrads) -> None:
    """Law 2 for one block in float32: a sample moves the clipped sum by at most C."""
    clip = FlatClip(1.0)
    with_all = clip(BlockwiseGrads({"w": block}, block.samples), 0).blocks["w"].double()
    without = clip(BlockwiseGrads({"w": others}, others.samples), 0).blocks["w"].double()
    assert (with_all - without).norm() <= 1.0


@pytest.mark.parametrize("algorithm", ["ghost", "formed", "chunked"])
@pytest.mark.parametrize("seed", SEEDS)
def test_cancelling_tokens_stay_within_the_clip(seed: int, algorithm: str) -> None:
    a, b = cancelling(seed)
    a, b = a * 1e3, b * 1e6
    block = FactoredGrad(a, b, algorithm=algorithm)
    sensitivity_holds(block, FactoredGrad(a[1:], b[1:], algorithm=algorithm))
    for i, norm in enumerate(block.squared_norms()):
        alone = block.weighted_sum(torch.eye(3, dtype=torch.float64)[i]).double()
        assert alone.square().sum() <= norm * (1 + 1e-4)


@pytest.mark.parametrize("algorithm", ["ghost", "pixels", "grouped", "patches", "chunked"])
@pytest.mark.parametrize("seed", range(6))
def test_cancelling_pixels_stay_within_the_clip(seed: int, algorithm: str) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 1, 4, 1, 1, generator=g) + 1e-5 * torch.randn(3, 1, 4, 6, 6, generator=g)
    b = torch.randn(3, 1, 5, 4, 4, generator=g)
    b = 1e6 * (b - b.mean((3, 4), keepdim=True))
    window = Window(torch.Size((5, 4, 3, 3)), (1, 1), (0, 0), (1, 1), 1)
    sensitivity_holds(
        ConvGrad(x, b, window, algorithm=algorithm), ConvGrad(x[1:], b[1:], window, algorithm=algorithm)
    )


def test_without_the_bound_the_ghost_norm_would_be_too_small() -> None:
    """The trap is real: in plain float32 some of these Gram norms lie far below the truth."""
    worst = 1.0
    for seed in range(60):
        a, b = cancelling(seed)
        gram = (torch.bmm(a, a.mT) * torch.bmm(b, b.mT)).sum((1, 2)).clamp_min(0.0)
        truth = torch.einsum("nto,nti->noi", b.double(), a.double()).flatten(1).square().sum(1)
        worst = min(worst, float((gram / truth).min()))
    assert worst < 0.5


@pytest.mark.parametrize("length", [1, 7, 127, 128, 1000, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norms_are_never_below_the_truth_and_hardly_above(length: int, dtype: torch.dtype) -> None:
    """Equal numbers, whose squares all round the same way, and random ones; the truth in exact fractions."""
    g = torch.Generator().manual_seed(length)
    rows = torch.rand(6, length, generator=g, dtype=torch.float64)
    rows[:3] = rows[:3, :1]
    rows = (rows * 10.0 ** torch.arange(-20, 16, 6)[:, None]).to(dtype)
    for row, norm in zip(
        rows.double().tolist(), row_squared_norms(DenseGrad(rows).rows).tolist(), strict=True
    ):
        truth = sum((Fraction(x) ** 2 for x in row), Fraction(0))
        assert truth <= Fraction(norm) <= truth * (1 + Fraction(EXCESS))


@pytest.mark.parametrize("n", [512, 32_768])
def test_sums_of_aligned_rows_are_as_good_as_exact(n: int) -> None:
    """One float32 sum of so many rows would be off by a tenth of a row."""
    g = torch.Generator().manual_seed(n)
    rows = 0.9 + 0.1 * torch.rand(n, 40, generator=g)
    weights = torch.rand(n, generator=g, dtype=torch.float64).add(1.0)
    exact = weights @ rows.double()
    assert float((weighted_rows(weights, rows) - exact).abs().max()) < 2e-3


def test_weights_below_float32_do_not_lose_their_rows() -> None:
    rows = torch.full((3, 5), 3e38)
    weights = torch.tensor([1e-42, 0.0, 1e-45], dtype=torch.float64)
    torch.testing.assert_close(weighted_rows(weights, rows), weights @ rows.double(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_norms_of_every_size_agree_with_float64(scale: float) -> None:
    a, b = torch.randn(4, 1, 5, generator=torch.Generator().manual_seed(0)), torch.randn(4, 1, 3)
    a, b = a * scale, b * scale
    truth = a.double().square().sum((1, 2)) * b.double().square().sum((1, 2))
    torch.testing.assert_close(FactoredGrad(a, b).squared_norms(), truth, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(row_squared_norms(a), a.double().square().sum((1, 2)), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e22, 1e30])
def test_squares_that_leave_float32_are_added_in_float64(scale: float) -> None:
    rows = torch.full((2, 7), scale)
    torch.testing.assert_close(row_squared_norms(rows), rows.double().square().sum(1), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("algorithm", ["ghost", "formed", "chunked"])
def test_tiny_inputs_times_huge_gradients_are_not_lost(algorithm: str) -> None:
    a, b = torch.randn(2, 3, 4) * 1e-20, torch.randn(2, 3, 4) * 1e20
    truth = torch.einsum("nto,nti->noi", b.double(), a.double()).flatten(1).square().sum(1)
    torch.testing.assert_close(
        FactoredGrad(a, b, algorithm=algorithm).squared_norms(), truth, rtol=2e-2, atol=0.0
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_tied_table_whose_parts_cancel_stays_within_the_clip(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    a, b = torch.randn(3, 4, 5, generator=g), torch.randn(3, 4, 6, generator=g)
    formed = torch.einsum("nto,nti->noi", b, a)
    noise = 1e-6 * torch.randn(formed.shape, generator=g)
    ids, owner = torch.arange(6).repeat(3), torch.arange(3).repeat_interleave(6)

    def tied(rows: slice) -> TiedGrad:
        kept = formed[rows]
        mine = owner[: len(kept) * 6]
        values = 1e6 * (noise[rows] - kept).flatten(0, 1)
        table = IndexedGrad(ids[: len(mine)], mine, values, samples=len(kept), table=6)
        return TiedGrad(table, FactoredGrad(1e6 * a[rows], b[rows], algorithm="ghost"))

    sensitivity_holds(tied(slice(None)), tied(slice(1, None)))


def test_dense_rows_of_weight_zero_do_not_count() -> None:
    rows = torch.tensor([[1.0, 2.0], [float("inf"), float("nan")]])
    assert DenseGrad(rows).weighted_sum(torch.tensor([2.0, 0.0])).tolist() == [2.0, 4.0]
