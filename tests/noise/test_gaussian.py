"""A Gaussian release: whole steps of a paid-for grid, one draw for each coordinate, whatever the blocks are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quietgrad._collective import Reducer, SingleProcess
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.grid import WORST_ROUNDING
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise import gaussian
from quietgrad._noise.base import NoiseDraw, NoiseState
from quietgrad._noise.gaussian import Gaussian, Widened, widen_noise
from quietgrad._noise.sources import EntropySource, HardenedSource, NoiseSource, SeededSource

SOURCES = [EntropySource, HardenedSource]


def released(
    total: ClippedSum,
    source: NoiseSource,
    *,
    std: float = 2.0,
    divisor: float = 4.0,
    reducer: Reducer | None = None,
) -> Released:
    reducer = reducer or SingleProcess()
    draw = NoiseDraw(std=std, divisor=divisor, source=source, reducer=reducer, step=0)
    return Gaussian().release(total, draw, NoiseState())[0]


def grid_of(total: ClippedSum, source: NoiseSource, std: float = 2.0) -> Widened:
    return widen_noise(
        std=std, sensitivity=total.sensitivity, coordinates=total.coordinates, steps=source.std
    )


class Counting(SeededSource):
    """Hands out 1, 2, 3, …: every coordinate can be recognised."""

    def __init__(self) -> None:
        super().__init__(0)
        self.given = 0

    def fill(self, out: Tensor) -> None:
        out.copy_(torch.arange(self.given + 1, self.given + len(out) + 1))
        self.given += len(out)


@pytest.mark.parametrize("source", [kind() for kind in SOURCES])
def test_rounding_is_paid_for(source: NoiseSource) -> None:
    total = ClippedSum(blocks={"w": torch.linspace(-3, 3, 20_000)}, sensitivity=0.5)
    out = released(total, source)
    step = out.std * 4.0 / source.std
    paid = out.sensitivity * 4.0 - total.sensitivity
    assert paid == pytest.approx(WORST_ROUNDING * step * math.sqrt(20_000), rel=1e-3)
    assert out.std / out.sensitivity == pytest.approx(2.0 / 0.5, rel=1e-12)
    noise = 4.0 * out.blocks["w"].double() - total.blocks["w"].double()
    assert float(noise.std()) == pytest.approx(out.std * 4.0, rel=5 / math.sqrt(2 * 20_000))


def test_every_coordinate_is_a_whole_number_of_steps_with_a_draw_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaussian, "DRAWN", 1000)
    monkeypatch.setattr(gaussian, "AT_ONCE", 300)
    blocks = {
        "a": torch.randn(70, 60, dtype=torch.float64).T,
        "b": torch.randn(1, dtype=torch.float64),
        "c": torch.zeros(0, dtype=torch.float64),
        "d": torch.randn(2999, dtype=torch.float64),
        "e": torch.tensor(0.5, dtype=torch.float64),
    }
    total, source = ClippedSum(blocks=blocks, sensitivity=1.0), Counting()
    out = released(total, source, divisor=1.0)
    grid = grid_of(total, source).grid
    steps = {name: out.blocks[name] / grid.step for name in blocks}
    drawn = torch.cat([(steps[name].round().long() - grid.steps(blocks[name])).flatten() for name in blocks])
    assert all(torch.allclose(each, each.round(), atol=1e-3) for each in steps.values())
    assert drawn.sort().values.tolist() == list(range(1, source.given + 1))
    assert source.given == 70 * 60 + 1 + 2999 + 1
    assert {name: block.shape for name, block in out.blocks.items()} == {
        n: b.shape for n, b in blocks.items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_is_only_ever_a_copy_of_a_finished_release(dtype: torch.dtype) -> None:
    """The same sum in another precision gets the same noise; what leaves has float32 at least."""
    values = torch.linspace(-3, 3, 1000).to(dtype)
    out = released(ClippedSum(blocks={"w": values}, sensitivity=1.0), SeededSource(1)).blocks["w"]
    wide = released(ClippedSum(blocks={"w": values.double()}, sensitivity=1.0), SeededSource(1)).blocks["w"]
    assert out.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(out, wide.to(out.dtype))
    assert len(out.unique()) > 990


def test_blocks_of_different_precision_do_not_share_one() -> None:
    blocks = {"half": torch.zeros(500, dtype=torch.float16), "double": torch.zeros(500, dtype=torch.float64)}
    out = released(ClippedSum(blocks=blocks, sensitivity=1.0), EntropySource()).blocks
    assert [out[name].dtype for name in out] == [torch.float32, torch.float64]
    steps = (
        out["double"] * 4.0 / grid_of(ClippedSum(blocks=blocks, sensitivity=1.0), EntropySource()).grid.step
    )
    assert len((steps.round().long() & 255).unique()) > 100, "the low bits of the steps are all there"


class Ranks(SingleProcess):
    """The other ranks' parts are known beforehand."""

    def __init__(self, rank: int, others: Blocks) -> None:
        self.rank, self.world, self.others = rank, 3, others

    def all_reduce(self, blocks: Blocks) -> Blocks:
        assert all(block.dtype == torch.int64 for block in blocks.values())
        self.sent = blocks
        return {name: block + self.others[name] for name, block in blocks.items()}


def test_ranks_release_the_bits_of_one_process() -> None:
    parts = [torch.randn(5000) for _ in range(3)]
    totals = [ClippedSum(blocks={"w": part}, sensitivity=1.0) for part in parts]
    grid = grid_of(totals[0], SeededSource(0)).grid
    on_grid = [ClippedSum(blocks=total.blocks, sensitivity=1.0, grid=grid) for total in totals]
    alone = released(on_grid[2] + on_grid[0] + on_grid[1], SeededSource(8)).blocks["w"]
    others = {"w": grid.steps(parts[1]) + grid.steps(parts[2])}
    together = released(totals[0], SeededSource(8), reducer=Ranks(0, others)).blocks["w"]
    assert alone.dtype == together.dtype == torch.float32
    assert torch.equal(alone, together)


def test_only_the_first_rank_draws() -> None:
    total, source = ClippedSum(blocks={"w": torch.randn(100)}, sensitivity=1.0), Counting()
    ranks = Ranks(1, {"w": torch.zeros(100, dtype=torch.int64)})
    released(total, source, reducer=ranks)
    assert source.given == 0
    assert torch.equal(ranks.sent["w"], grid_of(total, source).grid.steps(total.blocks["w"]))


def test_without_noise_the_sum_is_released_as_it_is() -> None:
    source = Counting()
    total = ClippedSum(blocks={"w": torch.randn(100), "h": torch.randn(3).half()}, sensitivity=1.0)
    out = released(total, source, std=0.0)
    assert torch.equal(out.blocks["w"], total.blocks["w"] / 4.0)
    assert out.blocks["h"].dtype == torch.float32
    assert source.given == 0
    assert (out.std, out.sensitivity) == (0.0, 0.25)


def test_a_grid_too_coarse_for_what_is_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer coordinates"):
        widen_noise(std=2.0, sensitivity=1.0, coordinates=10**13, steps=HardenedSource.std)
    wide = widen_noise(std=2.0, sensitivity=1.0, coordinates=10**8, steps=EntropySource.std)
    assert wide.sensitivity < 1.0005
