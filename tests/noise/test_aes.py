"""The bits that noise and draws are made of: AES-256's key stream, whole, fresh, and nobody else's."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from quietgrad._noise.aes import ZEROS, RandomWords

KEY = bytes(range(32))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 1000, len(ZEROS), 2 * len(ZEROS) + 5])
def test_it_is_the_key_stream_of_aes_256(size: int) -> None:
    """Checked against AES of the counter itself, block by block."""
    out = np.zeros(size, np.uint8)
    RandomWords(KEY).fill(out)
    blocks = -(-size // 16)
    counters = b"".join(i.to_bytes(16, "big") for i in range(blocks))
    expected = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(counters)[:size]
    assert out.tobytes() == expected


def test_a_stream_goes_on_where_it_stopped() -> None:
    words, once = RandomWords(KEY), RandomWords(KEY).take(100)
    odd = np.empty(3, np.uint8)
    parts = [words.take(40), words.take(60)]
    assert np.array_equal(np.concatenate(parts), once)
    words.fill(odd)
    assert len(np.unique(np.concatenate([once, words.take(100)]))) == 200


def test_every_stream_without_a_key_is_another() -> None:
    drawn = np.concatenate([RandomWords().take(100) for _ in range(50)])
    assert len(np.unique(drawn)) == len(drawn)
    numbered = np.concatenate([RandomWords(KEY, number).take(100) for number in (0, 1, 2**40)])
    assert len(np.unique(numbered)) == len(numbered)


def test_bytes_are_uniform() -> None:
    drawn = RandomWords().take(1 << 17).view(np.uint8)
    assert stats.chisquare(np.bincount(drawn, minlength=256)).pvalue > 1e-6
