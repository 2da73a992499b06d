"""Banded correlated noise: each release takes back a part of the noise of the releases before it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.bands import (
    WHOLE,
    inverse,
    mean_square,
    optimise,
    square_root,
    whole_coefficients,
    workload,
)
from quietgrad._noise.base import Noise, NoiseDraw, NoiseState
from quietgrad._noise.gaussian import add_to_grid, widen_noise, without_noise
from quietgrad._noise.sources import NoiseSource
from quietgrad.accounting import events

LOUDEST = 64.0
"""The noise of a release may be so many times that of z/m₀. Beyond, its integers would leave 32 bits: they have 20 bits
a standard deviation of z/m₀, so 9 standard deviations take 30. Useful coefficients stay below 33."""

LONGEST = 4096
"""Coefficients of C⁻¹ that the gain of a release is computed from; it hardly grows after that."""


@dataclass(frozen=True, kw_only=True)
class BandedNoise(Noise):
    """Gaussian noise of which later releases take a part back (BandMF).

        X_t = round(x_t/γ),   w_t = round((z_t − Σ_{j=1}^{b−1} m_j·w_{t−j})/m₀),   release γ·(X_t + w_t)/divisor

    Noise of one step is larger than DP-SGD's. Noise of the sum of all steps, which is what training adds up, is
    smaller where a run has few epochs. `qg.choose_bands` says whether it pays.

    Formal guarantee: let Y_t = Σ_j m_j·X_{t−j} + z_t. What is released is a function of the Y alone, because
    X_t + w_t = round((Y_t − Σ_{j≥1} m_j·(X_{t−j} + w_{t−j}))/m₀): all are integers, and nothing is rounded elsewhere.
    A record that takes part in step t moves X_t by at most S' = S + γ√p, so it moves (Y_t, …, Y_{t+b−1}) by at most
    ‖m‖·S'. Its next part is b steps later at the earliest (`PoissonBatches(groups=b)`), in other Y. So each of its
    parts is one Gaussian mechanism of multiplier σ, subsampled with the probability b·q that it takes part: a
    `BandedEvent`. γ is chosen so that the std of z is σ·‖m‖·S'/γ.

    A block of fresh noise may begin at any step that is chosen in public: then fewer Y hold what a record has added.
    After a resume, and where clip or space change, a block begins.
    Checked by: tests/noise/test_banded.py, tests/attacks/test_banded_noise.py.

    The last b − 1 vectors w are secret: whoever has them can subtract the noise. They stay in the memory of one process
    (4·(b − 1) bytes a coordinate) and never go into a checkpoint.

    Args:
        coefficients: m₀ … m_{b−1}, whole numbers, m₀ = 64.

    Raises:
        ValueError: m₀ is another number, or C⁻¹ grows without bound.

    Example:
        noise = qg.BandedNoise.optimised(bands=4, steps=100)
        mechanism = replace(qg.methods.dp_sgd(), noise=noise)
        batches = qg.PoissonBatches(train_set, rate=0.02, steps=100, groups=4)
    """

    needs_fixed_space: ClassVar[bool] = True

    coefficients: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = tuple(int(value) for value in self.coefficients)
        if not whole or whole[0] != WHOLE or whole != tuple(self.coefficients):
            raise ValueError(
                f"Expected whole coefficients that begin with {WHOLE}, got {self.coefficients}. Use "
                "BandedNoise.optimised(bands=…, steps=…) or BandedNoise.square_root(bands=…)."
            )
        object.__setattr__(self, "coefficients", whole)
        louder = math.hypot(*inverse(whole, LONGEST)) * WHOLE
        if not (self._gain(LONGEST) < 2 * self._gain(LONGEST // 2) and louder < LOUDEST):
            raise ValueError(
                f"Expected coefficients whose noise stays bounded, got {whole}: it grows from step to step. Let them "
                "fall towards the end, as those of BandedNoise.square_root do."
            )

    @classmethod
    def square_root(cls, bands: int) -> BandedNoise:
        """Return noise with the coefficients of the square root of partial sums, cut after `bands`."""
        return cls(coefficients=whole_coefficients(square_root(_checked_bands(bands))))

    @classmethod
    def optimised(cls, bands: int, steps: int, momentum: float = 0.0) -> BandedNoise:
        """Return noise of at most `bands` bands whose partial sums over `steps` have least mean square.

        Args:
            bands: at most as many as groups of the batches.
            steps: of the plan.
            momentum: of the optimizer.
        """
        most = min(_checked_bands(bands), steps)
        return cls(coefficients=whole_coefficients(optimise(most, steps, momentum)))

    @property
    def bands(self) -> int:
        """b, in how many steps a contribution shows."""
        return len(self.coefficients)

    @property
    def norm(self) -> float:
        """‖m‖."""
        return math.hypot(*self.coefficients)

    def multiplier(self, noise_multiplier: float, step: int) -> float:
        return noise_multiplier

    def event(self, noise_multiplier: float, step: int) -> events.Event:
        return events.BandedEvent(noise_multiplier=noise_multiplier, bands=self.bands)

    def grid_steps(self, source: NoiseSource) -> float:
        # z has the std of the source, and noise of std s on the sum is ‖m‖ times as wide in Y: so a step of the sum's
        # grid is ‖m‖ steps of the source's.
        return source.std / self.norm

    def remark(self, steps: int) -> str:
        sums = workload(steps)
        share = math.sqrt(mean_square(self.coefficients, sums) / mean_square([1.0], sums))
        return (
            f"correlated over {self.bands} steps; ×{self._gain(steps):.3g} in a step and ×{share:.3g} in the sum of "
            "updates, relative to independent noise of the same multiplier. qg.choose_bands compares at the same ε"
        )

    def init(self, space: Space) -> NoiseState:
        return NoiseState()

    def release(self, total: ClippedSum, draw: NoiseDraw, state: NoiseState) -> tuple[Released, NoiseState]:
        if draw.std == 0.0:
            return without_noise(total, draw), state
        wide = widen_noise(
            std=draw.std,
            sensitivity=total.sensitivity,
            coordinates=total.coordinates,
            steps=self.grid_steps(draw.source),
        )
        block = state.secret if isinstance(state.secret, NoiseBlock) else None
        if block is None or (block.grid_step, block.coordinates) != (wide.grid.step, total.coordinates):
            block = NoiseBlock(wide.grid.step, total.coordinates, self.bands - 1)
        source = MixingSource(draw.source, self.coefficients, block)
        blocks = add_to_grid(total, wide.grid, draw, source)
        released = Released(
            blocks=blocks,
            std=wide.std / draw.divisor,
            sensitivity=wide.sensitivity / draw.divisor,
            gain=self._gain(block.length + 1),
        )
        return released, NoiseState(secret=block.advance(source.mixed))

    def _gain(self, length: int) -> float:
        """Return std of w·γ over std of the accounted noise, `length` releases after a block has begun."""
        return gain(self.coefficients, min(length, LONGEST))


@lru_cache(maxsize=1024)
def gain(coefficients: tuple[int, ...], length: int) -> float:
    """Return ‖c⁻¹‖ over the first `length` coefficients, for c = m/‖m‖."""
    return float(math.hypot(*coefficients) * math.hypot(*inverse(coefficients, length)))


@dataclass(frozen=True, eq=False)
class NoiseBlock:
    """The noise of the releases since a block began. Secret.

    Args:
        grid_step: γ of these releases.
        coordinates: p.
        most: how many vectors are kept, b − 1.
        kept: the last w, newest first; on ranks that draw no noise, none.
        length: how many releases the block has.
    """

    grid_step: float
    coordinates: int
    most: int
    kept: tuple[Int32[Tensor, " p"], ...] = ()
    length: int = 0

    def advance(self, mixed: list[Tensor]) -> NoiseBlock:
        """Return the block after one more release."""
        newest = (torch.cat(mixed),) if mixed else ()
        kept = (*newest, *self.kept)[: self.most]
        return NoiseBlock(self.grid_step, self.coordinates, self.most, kept, self.length + 1)


class MixingSource(NoiseSource):
    """Draws w in the place of z, piece after piece of the same order in every release.

    Args:
        source: of z.
        coefficients: m.
        block: the w of the releases before.

    Attributes:
        mixed: the pieces of w that were drawn.
    """

    def __init__(self, source: NoiseSource, coefficients: tuple[int, ...], block: NoiseBlock) -> None:
        self._source, self._coefficients, self._block = source, coefficients, block
        self.private, self.std, self.fills_devices = source.private, source.std, source.fills_devices
        self.mixed: list[Tensor] = []
        self._start = 0

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        self._source.fill(out)
        stop = self._start + len(out)
        total = out.to(torch.int64)
        for coefficient, past in zip(self._coefficients[1:], self._block.kept, strict=False):
            total.sub_(past[self._start : stop].to(torch.int64), alpha=coefficient)
        out.copy_(divide_by_whole(total))
        self._start = stop
        if self._block.most:
            self.mixed.append(out.clone())

    def bits(self, count: int) -> Int64[Tensor, " count"]:
        return self._source.bits(count)


def divide_by_whole(total: Int64[Tensor, " count"]) -> Int64[Tensor, " count"]:
    """Return round(total/m₀), halves upwards: exact, as m₀ is a power of two."""
    return (total + WHOLE // 2) >> (WHOLE.bit_length() - 1)


def _checked_bands(bands: int) -> int:
    if int(bands) != bands or bands < 1:
        raise ValueError(f"Expected bands to be a whole number >= 1, got {bands}.")
    return int(bands)
