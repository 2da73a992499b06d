"""Sums on tensor cores that cut instead of rounding stay within θ ≤ 3 times IEEE's bound, whatever is added."""

from __future__ import annotations

import numpy as np
import pytest

from quietgrad._kernels.rounding import CORE_POSITIONS, POSITIONS, SPENT, THETA, UNIT, core_theta, longest

CORES = [(k, bits) for k in (4, 8, 16) for bits in (24, 25)]


def bf16(values: np.ndarray) -> np.ndarray:
    """Round to bfloat16, as float64."""
    raw = np.asarray(values, np.float32).view(np.uint32)
    rounded: np.ndarray = ((raw + 0x7FFF + ((raw >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return rounded.astype(np.float64)


def core_sum(products: np.ndarray, k: int, bits: int) -> np.ndarray:
    """Add rows of exact products as a core does: k and the accumulator aligned, cut to `bits`, the sum to float32."""
    total = np.zeros(len(products))
    for start in range(0, products.shape[1], k):
        terms = np.concatenate([total[:, None], products[:, start : start + k]], 1)
        top = np.frexp(np.abs(terms).max(1))[1]
        unit = np.ldexp(1.0, top - bits)[:, None]
        mantissa, exponent = np.frexp((np.trunc(terms / unit) * unit).sum(1))
        total = np.ldexp(np.trunc(mantissa * 2.0**24), exponent - 24)
    return total


def families(k: int, bits: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k * bits)
    gauss = bf16(rng.standard_normal((50, length))) * bf16(rng.standard_normal((50, length)))
    same = bf16(rng.uniform(1, 2, (50, length))) * bf16(rng.uniform(1, 2, (50, length)))
    cancelling = gauss.copy()
    cancelling[:, length // 2 :] = -cancelling[:, : length // 2]
    cancelling[:, -1] = 2.0**-20
    # One, then terms just below what is kept beside it: all of them are cut away.
    unit = 2.0 ** (1 - bits)
    conspiring = np.full((2, length), unit * (1 - 2.0**-7))
    conspiring[:, 0] = 1.0
    # The same with a 1 below the top bit, so that each step's sum loses its own last bit too.
    conspiring[1, 0] = 1.9921875
    conspiring[1, 1:] = unit * 1.9921875 * 0.4999
    return {"gauss": gauss, "same": same, "cancelling": cancelling, "conspiring": conspiring}


@pytest.mark.parametrize(("k", "bits"), CORES)
@pytest.mark.parametrize("length", [16, 64, 256])
def test_a_core_loses_at_most_theta(k: int, bits: int, length: int) -> None:
    bound = core_theta(k, bits) * length * UNIT
    for name, products in families(k, bits, length).items():
        lost = np.abs(core_sum(products, k, bits) - products.sum(1)) / np.abs(products).sum(1)
        assert lost.max() <= bound, name


@pytest.mark.parametrize(("k", "bits"), CORES)
def test_conspiring_terms_come_near_the_bound(k: int, bits: int) -> None:
    """Else it would be no test of it: they lose a third of what is allowed, and more than IEEE's sums may."""
    products = families(k, bits, 256)["conspiring"]
    lost = (np.abs(core_sum(products, k, bits) - products.sum(1)) / np.abs(products).sum(1)).max()
    assert lost >= core_theta(k, bits) * 256 * UNIT / 3
    if bits == 24:
        assert lost > 256 * UNIT


def test_theta_covers_every_such_core() -> None:
    assert max(core_theta(k, bits) for k, bits in CORES) == core_theta(4, 24) == THETA == 3.0


def test_short_runs_on_cores_leave_room_where_long_ones_do_not() -> None:
    """κ is 1 for samples of one position, whatever they are: what `longest` allows must not be less."""
    assert longest(1) >= 1
    assert longest(1, POSITIONS, THETA) < 1, "runs as long as elsewhere would not do"
    assert all(longest(positions, CORE_POSITIONS, THETA) >= 1 for positions in range(1, 3000))


@pytest.mark.parametrize(("k", "bits"), CORES)
def test_one_row_moves_a_sum_on_a_core_by_its_clip(k: int, bits: int) -> None:
    """Law 2 with sums of a run replaced by the simulation: rows along one coordinate, each at most 1 long."""
    unit = 2.0 ** (1 - bits)
    rng = np.random.default_rng(1)
    batches = [
        np.concatenate([[1.0], np.full(CORE_POSITIONS - 1, unit * (1 - 2.0**-7))]),
        np.concatenate([np.ones(CORE_POSITIONS // 2), np.full(CORE_POSITIONS // 2, 0.999)]),
        bf16(rng.uniform(-1, 1, CORE_POSITIONS)),
    ]
    for batch in batches:
        whole = core_sum(batch[None], k, bits)[0]
        for row in range(0, CORE_POSITIONS, 7):
            other = batch.copy()
            other[row] = 0.0
            assert abs(whole - core_sum(other[None], k, bits)[0]) <= 1 + SPENT
