"""Coins for records: each on its own, at the rate, to the last of 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

from quietgrad._noise.aes import RandomWords
from quietgrad._sampling import coins
from quietgrad._sampling.coins import heads
from tests.noise.scripted import Scripted


@pytest.mark.parametrize("rate", [1e-3, 0.02, 0.5, 0.999])
def test_the_share_of_heads_is_the_rate(rate: float) -> None:
    n = 2_000_000
    found = heads(n, rate, RandomWords())
    assert abs(len(found) - rate * n) < 5 * np.sqrt(rate * (1 - rate) * n)
    assert np.array_equal(found, np.unique(found))
    early = int((found < n // 2).sum())
    assert abs(2 * early - len(found)) < 5 * np.sqrt(rate * (1 - rate) * n)


def test_always_and_practically_never() -> None:
    assert np.array_equal(heads(1000, 1.0, RandomWords()), np.arange(1000))
    assert len(heads(100_000, 1e-15, RandomWords())) == 0


def test_the_first_sixteen_bits_tell_and_the_others_where_they_do_not() -> None:
    rate = 0.25 + 2.0**-20  # the 16 bits 0x4000, then 48 bits of which the 44th from below is the only one
    first = np.array([0x3FFF, 0x4000, 0x4001, 0x4000], np.uint16)
    rest = np.array([((1 << 44) - 1) << 16, (1 << 44) << 16], np.uint64)
    assert heads(4, rate, Scripted(first, rest)).tolist() == [0, 1]


def test_many_records_are_tossed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coins, "AT_ONCE", 100)
    found = heads(1050, 0.5, RandomWords())
    assert found.max() > 1000
    assert abs(len(found) - 525) < 5 * np.sqrt(1050 / 4)
