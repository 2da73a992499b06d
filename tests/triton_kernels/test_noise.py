"""The noise kernel draws the integers of its numpy twin, bit for bit, in every branch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quietgrad._kernels import triton_noise
from quietgrad._noise import keyed
from quietgrad._noise.keyed import chacha_blocks, fill_keyed, finish_trials
from quietgrad._noise.pieces import BOXES, UNIT
from quietgrad._noise.rounded_gaussian import RoundedGaussian, default
from quietgrad._noise.trials import roofs
from tests.noise.vectors import VECTORS, Vector
from tests.triton_kernels.interpreter import DEVICE, WIDTH, needs_triton

pytestmark = needs_triton
KEY = bytes(range(1, 33))


def by_kernel(
    count: int, first: int = 0, *, width: int = WIDTH, sampler: RoundedGaussian | None = None
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Draw with the kernel; return the integers, and places and trials that came back to the host."""
    sampler = sampler or default()
    out = torch.full((count,), 7, dtype=torch.int32, device=DEVICE)
    left = triton_noise.keyed_trials(sampler.tables, out, KEY, first, width)
    drawn = out.cpu().numpy()
    drawn[left.places] = finish_trials(sampler, KEY, first, left)
    return drawn, sorted(zip(left.places.tolist(), left.trials.tolist(), strict=True))


def by_twin(count: int, first: int = 0) -> np.ndarray:
    out = torch.empty(count, dtype=torch.int32)
    fill_keyed(out, KEY, first)
    return out.numpy()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_key_stream_is_that_of_rfc_8439(vector: Vector) -> None:
    from quietgrad._kernels.triton_code import noise_code

    out = torch.zeros(4, 16, dtype=torch.int32, device=DEVICE)
    key = torch.from_numpy(np.frombuffer(vector.key, "<i4").copy()).to(DEVICE).view(torch.uint32)
    noise_code.key_blocks[(1,)](out, key, vector.block, vector.stream, B=4)
    assert out[0].cpu().numpy().astype("<i4").tobytes().hex() == vector.made
    assert np.array_equal(
        out.cpu().numpy().view(np.uint32), chacha_blocks(vector.key, vector.stream, vector.block, 4)
    )


@pytest.mark.parametrize(("count", "first"), [(12_000, 0), (3_000, 1027), (1_000, 2**33 + 5), (1, 0), (0, 3)])
def test_the_kernel_draws_the_integers_of_its_twin(count: int, first: int) -> None:
    found, _ = by_kernel(count, first)
    assert np.array_equal(found, by_twin(count, first))


@pytest.mark.slow
def test_the_shape_of_a_launch_does_not_matter() -> None:
    expected, _ = by_kernel(2_500, 1_000)
    for width in (128, 512):
        assert np.array_equal(by_kernel(2_500, 1_000, width=width)[0], expected)


@pytest.mark.nightly
def test_a_million_integers_are_those_of_the_twin() -> None:
    found, left = by_kernel(1 << 20, width=max(WIDTH, 1 << 14) if DEVICE.type == "cpu" else WIDTH)
    assert np.array_equal(found, by_twin(1 << 20))
    assert left, "some went back to the host"


def test_points_that_float64_does_not_decide_go_back_and_come_out_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a margin of 2⁻¹² a tenth of the boxes' points are doubtful."""
    monkeypatch.setattr("quietgrad._noise.rounded_gaussian.MARGIN", 2.0**-12)
    sampler = RoundedGaussian()
    found, left = by_kernel(8_000, sampler=sampler)
    assert len(left) > 2
    assert np.array_equal(found, by_twin(8_000))


@pytest.mark.slow
def test_a_list_that_is_too_short_is_seen_and_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, lengths = triton_noise._draw, list[int]()

    def short(*args: Any, room: int, left_room: int) -> Any:
        lengths.append(room)
        return real(*args, room=room if len(lengths) > 1 else 4, left_room=left_room)

    monkeypatch.setattr(triton_noise, "_draw", short)
    found, _ = by_kernel(5_000)
    assert len(lengths) == 2
    assert np.array_equal(found, by_twin(5_000))


# ---- planted words ------------------------------------------------------------------------------------------

Words = dict[tuple[int, int], list[int]]
"""Stream and block, and the sixteen words that stand there."""


def tent(slot: int) -> list[int]:
    """Two words that choose a slot."""
    return [slot >> 4, slot & 15]


def in_box(box: int, share: float, next_slot: int = 100) -> list[int]:
    """The words of a trial: the first integer of a box, so high in it, then a slot for the next trial."""
    height = int(share * 2**64)
    return [0, (box % BOXES) << 24, height & 0xFFFFFFFF, height >> 32, *tent(next_slot), *[0] * 10]


def crossed(sampler: RoundedGaussian) -> tuple[int, float]:
    """A box that the curve goes through, and how high the curve is in it at its first integer."""
    boxes = np.arange(sampler._boxes)
    starts, height = sampler._box["start"][boxes].astype(np.int64), sampler._height * UNIT
    floor = roofs(sampler.tables, boxes, starts) + sampler._box["level"][boxes]
    share = np.exp(-(((starts - 0.5) / sampler.std) ** 2) / 2) / height - floor
    box = int(np.flatnonzero((share > 0.2) & (share < 0.8))[100])
    return box, float(share[box])


def planted_words() -> tuple[Words, dict[int, str]]:
    """Words for coordinates 0, 1, … of a draw, one for each branch; what each is there for."""
    sampler = default()
    tables = sampler.tables
    box, share = crossed(sampler)
    slot = tables.tents + box // BOXES
    ends = tables.tents + tables.boxes // BOXES
    trials = {
        "below": [in_box(box, share - 1e-6)],
        "above, then a tent": [in_box(box, share + 1e-6)],
        "above, then below": [in_box(box, share + 0.1, slot), in_box(box, share - 0.1)],
        "above, above, then a tent": [
            in_box(box, share + 0.1, slot),
            in_box(box, share + 0.1),
        ],
        "above, above, then a box": [
            in_box(box, share + 0.1, slot),
            in_box(box, share + 0.1, slot),
            in_box(box, share - 0.1),
        ],
        "doubt": [in_box(box, share)],
        "doubt in the second trial": [in_box(box, share + 0.1, slot), in_box(box, share)],
        "right end": [in_box(tables.boxes, 0.5)],
        "left end": [in_box(tables.boxes + 1, 0.5)],
        "left end in the second trial": [
            in_box(box, share + 0.1, ends),
            in_box(tables.boxes + 1, 0.5),
        ],
    }
    words: Words = {}
    for i, (name, made) in enumerate(trials.items()):
        first_slot = ends if "end" in name and len(made) == 1 else slot
        # Pair 0 of block i: coordinate i of the first tile.
        words[0, i] = [*tent(first_slot), *tent(100) * 7]
        words.update({(k + 1, i): block for k, block in enumerate(made)})
    return words, dict(enumerate(trials))


def plant(monkeypatch: pytest.MonkeyPatch, words: Words) -> None:
    """Put the words into the key streams of the twin and of the interpreted kernel."""
    from quietgrad._kernels.triton_code import noise_code

    real, real_block = chacha_blocks, noise_code.key_block

    def blocks(key: bytes, stream: int, block: int, count: int) -> np.ndarray:
        made = real(key, stream, block, count)
        for i in range(count):
            if (stream, block + i) in words:
                made[i] = words[stream, block + i]
        return made

    def key_block(key: Any, block: Any, stream: Any) -> Any:
        made = real_block(key, block, stream)
        number = int(np.asarray(getattr(getattr(stream, "handle", None), "data", stream)).ravel()[0])
        for (s, b), row in words.items():
            at = block.handle.data == b
            if s == number and at.any():
                for word, value in zip(made, row, strict=True):
                    word.handle.data[at] = value
        return made

    monkeypatch.setattr(keyed, "chacha_blocks", blocks)
    monkeypatch.setattr(noise_code, "key_block", key_block)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="words can be planted in the interpreter only")
def test_every_rare_branch_comes_out_as_in_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    words, names = planted_words()
    plant(monkeypatch, words)
    found, left = by_kernel(1024)
    assert np.array_equal(found, by_twin(1024))
    came_back = {names[place]: trial for place, trial in left if place in names}
    assert came_back == {
        "above, above, then a box": 3,
        "doubt": 1,
        "doubt in the second trial": 2,
        "right end": 1,
        "left end": 1,
        "left end in the second trial": 2,
    }
    start = int(default()._box["start"][crossed(default())[0]])
    by_name = {name: int(found[place]) for place, name in names.items()}
    assert by_name["below"] == by_name["above, then below"] == by_name["above, above, then a box"] == start
    point = int(default().tables.centre[100]) * (default().std // 8) + 1
    assert by_name["above, then a tent"] == by_name["above, above, then a tent"] == point
