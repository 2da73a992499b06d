"""Weighted sums of products in C: those of the reference at every level, whatever the runs, strides and threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._gradients import kernel_gradients
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.kernel_gradients import convolve, form
from quietgrad._gradients.row_arithmetic import products_in_runs, weighted_products
from quietgrad._kernels import levels, product_sums
from quietgrad._kernels.patches import Window, positions_first, unfold_rows
from quietgrad._kernels.rounding import POSITIONS, UNIT, runs

pytestmark = pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
LEVELS = levels.levels()
SIZES = [
    (300, 1, 1, 1),
    (300, 1, 7, 17),
    (513, 1, 97, 65),
    (9, 64, 12, 32),
    (3, 300, 5, 130),
    (7, 50, 200, 3),
]
"""Samples, positions, outputs, inputs: in whole tiles and blocks and not, whole samples in a run and parts of one."""


def made(size: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    n, t, o, i = size
    g = torch.Generator().manual_seed(n + t)
    return (
        torch.randn(n, t, o, generator=g),
        torch.randn(n, t, i, generator=g),
        torch.rand(n, generator=g).double(),
    )


def in_c(b: Tensor, a: Tensor, weights: Tensor, level: str, most: int = POSITIONS) -> Tensor:
    with levels.use_level(level):
        places = list(runs(len(a), a.shape[1], a.dtype, most))
        return product_sums.products_in_runs(b, a, weights, places)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("most", [1, 64, POSITIONS])
def test_sums_are_within_their_rounding_bound(size: tuple[int, int, int, int], most: int, level: str) -> None:
    b, a, weights = made(size)
    found = in_c(b, a, weights, level, most)
    assert found.dtype == torch.float64
    truth = torch.einsum("nto,nti,n->oi", b.double(), a.double(), weights)
    # A term is in at most `most` partial sums; its factor, weight and product are rounded once each.
    size_of_terms = torch.einsum("nto,nti,n->oi", b.double().abs(), a.double().abs(), weights)
    longest_run = max(place.stop - place.start for place in runs(len(a), a.shape[1], a.dtype, most))
    assert bool(((found - truth).abs() <= (longest_run + 3) * UNIT * size_of_terms).all())


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_is_added_in_float32_and_runs_in_float64(level: str) -> None:
    b, weights = torch.ones(2 * POSITIONS, 1, 1), torch.ones(2 * POSITIONS)
    a = torch.full((2 * POSITIONS, 1, 1), 2.0**-24)
    a[0] = 1.0
    # Within the first run float32 loses what is half a unit of rounding; the second run is added without loss.
    assert in_c(b, a, weights, level).item() == 1.0 + POSITIONS * 2.0**-24


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("of", ["a", "b"])
@pytest.mark.parametrize("size", [(300, 1, 3, 40), (300, 1, 40, 3)])
def test_a_row_of_weight_zero_adds_exactly_zero(
    size: tuple[int, int, int, int], of: str, value: float, level: str
) -> None:
    b, a, weights = made(size)
    weights[7] = 0.0
    clean_a, clean_b = a.clone(), b.clone()
    clean_a[7] = clean_b[7] = 0.0
    {"a": a, "b": b}[of][7] = value
    assert torch.equal(in_c(b, a, weights, level), in_c(clean_b, clean_a, weights, level))


@pytest.mark.parametrize("level", LEVELS)
def test_other_runs_come_to_the_same_bits_whatever_one_row_is(level: str) -> None:
    b, a, weights = made((600, 1, 50, 70))
    one = in_c(b, a, weights, level)
    weights[3] = 0.0
    without = in_c(b, a, weights, level)
    weights[:POSITIONS] = 0.0
    rest = in_c(b, a, weights, level)
    alone = in_c(b[:POSITIONS], a[:POSITIONS], made((600, 1, 50, 70))[2][:POSITIONS], level)
    assert not torch.equal(one, without)
    torch.testing.assert_close(one - rest, alone, rtol=0.0, atol=1e-12)
    assert torch.equal((one - rest).float(), alone.float())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["transposed", "features first", "expanded", "sliced"])
def test_sums_do_not_depend_on_where_numbers_lie(kind: str, level: str) -> None:
    b, a, weights = made((20, 30, 13, 35))
    layouts = {
        "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "features first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "expanded": lambda x: x[:1].expand(x.shape),
        "sliced": lambda x: torch.cat([x, x], 2)[..., : x.shape[2]],
    }
    b, a = (layouts[kind](x) for x in (b, a))
    assert torch.equal(in_c(b, a, weights, level), in_c(b.contiguous(), a.contiguous(), weights, level))


@pytest.mark.parametrize("level", LEVELS)
def test_threads_do_not_touch_the_bits(level: str) -> None:
    b, a, weights = made((513, 1, 97, 65))
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(in_c(b, a, weights, level))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("size", [(0, 1, 3, 4), (512, 1, 0, 4), (1, 0, 3, 4)])
def test_nothing_adds_up_to_nothing(size: tuple[int, int, int, int]) -> None:
    b, a, weights = made(size)
    assert products_in_runs.find_kernel(b, a, weights, [slice(0, 1), slice(1, 2)]) is None
    found = weighted_products(b, a, weights)
    assert found.shape == (size[2], size[3])
    assert bool((found == 0).all())


def test_a_sum_does_not_lie_in_memory_that_the_next_one_takes() -> None:
    b, a, weights = made((600, 1, 20, 30))
    first = weighted_products(b, a, weights)
    assert first.dtype == torch.float64
    kept = first.clone()
    second = weighted_products(2 * b, a, weights)
    assert torch.equal(first, kept)
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.skipif(LEVELS[-1:] == ("portable",), reason="torch's products are taken there")
def test_several_runs_take_the_kernel() -> None:
    b, a, weights = made((300, 1, 7, 17))
    several, one = list(runs(300, 1, a.dtype)), [slice(0, 300)]
    for level in ("off", "portable"):
        with levels.use_level(level):
            assert products_in_runs.find_kernel(b, a, weights, several) is None
    with levels.use_level(LEVELS[-1]):
        kernel = products_in_runs.find_kernel(b, a, weights, several)
        assert kernel is not None
        assert kernel.run is product_sums.products_in_runs
        assert products_in_runs.find_kernel(b, a, weights, one) is None


# ---- patches of pictures -------------------------------------------------------------------------------------

WINDOWS = {
    "padded": Window(torch.Size((5, 16, 3, 3)), (1, 1), (1, 1), (1, 1), 1),
    "strided": Window(torch.Size((9, 12, 3, 5)), (2, 3), (0, 2), (1, 1), 1),
    "dilated downwards": Window(torch.Size((4, 33, 3, 1)), (1, 1), (2, 0), (2, 1), 1),
}


def picture(window: Window, samples: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, output gradients and weights."""
    g = torch.Generator().manual_seed(samples)
    inputs = torch.randn(samples, 1, window.kernel[1], 9, 11, generator=g)
    outputs = convolve(inputs, torch.zeros(1, window.taps), window).shape[3:]
    return (
        inputs,
        torch.randn(samples, 1, window.kernel[0], *outputs, generator=g),
        torch.rand(samples, generator=g).double(),
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_patches_read_off_their_picture_add_up_to_the_bits_of_unfolded_ones(
    window: Window, level: str
) -> None:
    inputs, backprops, weights = picture(window)
    weights[3] = 0.0
    inputs[3] = torch.nan
    b = positions_first(backprops)
    with levels.use_level(level):
        found = product_sums.patch_products(inputs, backprops, weights, window)
    assert len(list(runs(len(b), b.shape[1], b.dtype))) > 1
    assert torch.equal(found, in_c(b, unfold_rows(inputs, window), weights, level))
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_convolutions_sum_takes_patches_where_they_lie(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, backprops, weights = picture(window)
    grads = ConvGrad(inputs, backprops, window, algorithm="pixels")
    with levels.use_level(LEVELS[-1]):
        if kernel_gradients.patch_products.find_kernel(inputs, backprops, weights, window) is None:
            pytest.skip("no level here whose products are faster than torch's")
        monkeypatch.setattr(
            kernel_gradients, "unfold_rows", lambda *_: pytest.fail("nothing is to be unfolded")
        )
        found = grads.weighted_sum(weights)
    truth = torch.einsum("n...,n->...", form(inputs.double(), backprops.double(), window), weights)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4)
