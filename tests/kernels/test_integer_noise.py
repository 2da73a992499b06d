"""The same noise from the same bits: with the library and without it, at every level, a seed gives one release."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from quietgrad._collective import SingleProcess
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.grid import Grid
from quietgrad._gradients.stages import ClippedSum
from quietgrad._kernels import levels, library
from quietgrad._kernels.key_streams import aes_instructions
from quietgrad._noise.aes import RandomWords
from quietgrad._noise.base import NoiseDraw, NoiseState
from quietgrad._noise.gaussian import Gaussian, add_integers
from quietgrad._noise.rounded_gaussian import AT_ONCE, RoundedGaussian
from quietgrad._noise.sources import SeededSource

KEY = bytes(range(1, 33))
pytestmark = pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
LEVELS = levels.levels()


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize(
    ("number", "first", "count"), [(0, 0, 1), (0, 5, 100), (7, 2**40, 1003), (2**63, 3, 17)]
)
def test_the_key_stream_is_that_of_aes_256(kind: int, number: int, first: int, count: int) -> None:
    native = library.native()
    assert native is not None
    if native.qg_aes(len(LEVELS) - 1) < kind:
        pytest.skip("this processor has no such instructions")
    out = np.zeros(16 * count + 8, np.uint8)
    native.qg_key_stream(
        KEY,
        ctypes.c_uint64(number),
        ctypes.c_uint64(first),
        ctypes.c_int64(count),
        ctypes.c_void_p(out.ctypes.data),
        kind,
    )
    blocks = b"".join(number.to_bytes(8, "big") + (first + i).to_bytes(8, "big") for i in range(count))
    expected = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(blocks)
    assert out[: 16 * count].tobytes() == expected
    assert not out[16 * count :].any(), "nothing is written beyond"


def test_a_stream_goes_on_after_what_a_kernel_took() -> None:
    whole, words = RandomWords(KEY, 3).take(100), RandomWords(KEY, 3)
    odd = np.empty(5, np.uint8)
    words.fill(odd)
    place = words.place()
    assert (place.key, place.number, place.position) == (KEY, 3, 5)
    words.skip(3 + 8 * 40)
    assert np.array_equal(words.take(59), whole[41:])


def drawn(level: str, log_std: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The draws, from an odd place in the stream, and what comes after them."""
    words = RandomWords(bytes([seed]) * 32, seed)
    words.fill(np.empty(seed % 19, np.uint8))
    with levels.use_level(level):
        return RoundedGaussian(log_std).draw(count, words), words.take(3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [0, 1, 7, 4095, AT_ONCE + 5, 3 * AT_ONCE, 300_001])
def test_every_level_draws_the_integers_of_the_reference(level: str, count: int) -> None:
    for log_std, seed in ((26, 1), (7, 2), (12, 30)):
        found, after = drawn(level, log_std, count, seed)
        expected, then = drawn("off", log_std, count, seed)
        assert np.array_equal(found, expected)
        assert np.array_equal(after, then), "as many bits are used"


@pytest.mark.parametrize("level", LEVELS)
def test_points_that_float64_cannot_decide_and_both_ends_are_decided_alike(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a margin of 2⁻¹² a tenth of the boxes' points are doubtful; a million draws reach an end now and then."""
    monkeypatch.setattr("quietgrad._noise.rounded_gaussian.MARGIN", 2.0**-12)
    asked: list[int] = []
    decide = RoundedGaussian._lies_below

    def counted(
        self: RoundedGaussian, box: int, integer: int, first: int, second: int, words: RandomWords
    ) -> bool:
        asked.append(box)
        return decide(self, box, integer, first, second, words)

    monkeypatch.setattr(RoundedGaussian, "_lies_below", counted)
    found, after = drawn(level, 26, 20_000, 5)
    count = len(asked)
    expected, then = drawn("off", 26, 20_000, 5)
    assert 5 < count == len(asked) - count
    assert np.array_equal(found, expected)
    assert np.array_equal(after, then)


def test_levels_with_instructions_for_aes_make_their_own_bits() -> None:
    with levels.use_level("portable"):
        assert aes_instructions() == 0


def blocks() -> Blocks:
    """Sums of every precision and layout, with what is not a number and what is far off the grid."""
    g = torch.Generator().manual_seed(0)
    odd = torch.tensor(
        [0.0, -0.0, 1e-12, -2.5e-8, 7.5e-8, 1e30, -1e30, float("inf"), -float("inf"), float("nan")]
    )
    return {
        "wide": torch.randn(300, 301, generator=g, dtype=torch.float64),
        "turned": torch.randn(70, 60, generator=g, dtype=torch.float64).T,
        "single": torch.randn(1001, generator=g),
        "half": torch.randn(50, generator=g).half(),
        "none": torch.zeros(0, dtype=torch.float64),
        "number": torch.tensor(0.5, dtype=torch.float64),
        "odd": odd.double(),
    }


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("with_noise", [True, False])
def test_every_level_adds_the_same_steps(level: str, scale: float | None, with_noise: bool) -> None:
    found = []
    for each in (level, "off"):
        dtypes = {"wide": torch.float32}
        out = {
            name: torch.full(
                b.shape, 9, dtype=torch.int64 if scale is None else dtypes.get(name, torch.float64)
            )
            for name, b in blocks().items()
            if scale is not None or name != "odd"
        }
        values = {name: b for name, b in blocks().items() if name in out}
        with levels.use_level(each):
            add_integers(values, Grid(5e-8), SeededSource(1) if with_noise else None, out, scale=scale)
        found.append(out)
    for name, block in found[0].items():
        assert torch.equal(block.nan_to_num(1e5), found[1][name].nan_to_num(1e5)), name
        assert torch.equal(block.isnan(), found[1][name].isnan())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_release(threads: int) -> None:
    total = ClippedSum(blocks=blocks(), sensitivity=1.0)
    before = torch.get_num_threads()
    released = []
    for count in (1, threads):
        torch.set_num_threads(count)
        draw = NoiseDraw(std=1.0, divisor=4.0, source=SeededSource(2), reducer=SingleProcess(), step=0)
        released.append(Gaussian().release(total, draw, NoiseState())[0].blocks)
    torch.set_num_threads(before)
    assert all(
        torch.equal(b.nan_to_num(7), released[1][name].nan_to_num(7)) for name, b in released[0].items()
    )
