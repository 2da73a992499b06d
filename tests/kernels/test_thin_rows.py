"""Thin products in C are the reference's, and the bits of a row depend on no other row."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.row_arithmetic import each_times, lifted_rows
from quietgrad._kernels import levels
from quietgrad._kernels.library import has_function

pytestmark = pytest.mark.skipif(
    os.environ.get("QUIETGRAD_KERNELS") == "off" or not levels.levels() or not has_function("qg_row_times"),
    reason="the C library was not built, or is switched off",
)
LEVELS = levels.levels()
SIZES = [(1, 1, 1, 1), (3, 1, 31, 4), (5, 3, 64, 16), (2, 7, 65, 5), (33, 1, 785, 16), (9, 2, 130, 1)]
"""n, x, d, r: in whole tiles and vectors and not."""


def drawn(size: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    n, x, d, r = size
    g = torch.Generator().manual_seed(sum(size))
    return (
        torch.randn(n, x, d, generator=g),
        torch.randn(d, r, generator=g),
        torch.randn(n, x, r, generator=g),
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_and_lifts_are_those_of_float64(size: tuple[int, int, int, int], level: str) -> None:
    rows, matrix, thin = drawn(size)
    with levels.use_level(level):
        assert each_times.find_kernel(rows, matrix) is not None
        assert lifted_rows.find_kernel(rows, thin, matrix.T, 0.3) is not None
        product, lifted = each_times(rows, matrix), lifted_rows(rows, thin, matrix.T, 0.3)
    error = 2.0**-24 * (rows.shape[2] + 4)
    bound = error * rows.double().norm(dim=2, keepdim=True) * matrix.double().norm(dim=0)
    assert bool(((product.double() - rows.double() @ matrix.double()).abs() <= bound).all())
    expected = 0.3 * rows.double() + thin.double() @ matrix.double().T
    torch.testing.assert_close(lifted.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_depend_on_no_other_row_level_or_thread(size: tuple[int, int, int, int]) -> None:
    rows, matrix, thin = drawn(size)
    before, found = torch.get_num_threads(), []
    try:
        for level in LEVELS:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                with levels.use_level(level):
                    found.append((each_times(rows, matrix), lifted_rows(rows, thin, matrix.T, 0.3)))
    finally:
        torch.set_num_threads(before)
    for first in range(len(rows)):
        fewer = each_times(rows[first:], matrix), lifted_rows(rows[first:], thin[first:], matrix.T, 0.3)
        for whole, part in zip(found[0], fewer, strict=True):
            assert torch.equal(whole[first:], part)
    for product, lifted in found:
        assert torch.equal(product, found[0][0])
        assert torch.equal(lifted, found[0][1])


def test_what_the_kernels_do_not_take_is_left_to_torch() -> None:
    rows, matrix, _ = drawn((4, 3, 8, 2))
    assert each_times.find_kernel(rows.double(), matrix.double()) is None
    assert each_times.find_kernel(rows, torch.ones(8, 17)) is None
    turned = rows.transpose(0, 1)
    assert each_times.find_kernel(turned, matrix) is None
    torch.testing.assert_close(each_times(turned, matrix), turned @ matrix)
    strided = rows[:, :1]  # one row a sample, far apart
    assert each_times.find_kernel(strided, matrix) is not None
    torch.testing.assert_close(each_times(strided, matrix), strided @ matrix)
