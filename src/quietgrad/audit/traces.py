"""A short run with everything written down that must not depend on a single record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.base import Noise, NoiseDraw, NoiseState
from quietgrad._noise.sources import NoiseSource, SeededSource
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._sampling.batches import PoissonBatches
from quietgrad.accounting.events import Event, Phase

Loop = Callable[[Privatizer, PoissonBatches, nn.Module], None]


@dataclass
class RunTrace:
    """What one run did."""

    draws: list[int] = field(default_factory=list)
    releases: list[TracedRelease] = field(default_factory=list)
    ledger: tuple[Phase, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True)
class TracedRelease:
    step: int
    total: ClippedSum
    std: float
    divisor: float
    released: Released


def trace_run(
    model: nn.Module,
    mechanism: Mechanism,
    batches: PoissonBatches,
    loop: Loop,
    privatizer: Callable[..., Privatizer],
    seed: int,
    options: dict[str, Any],
) -> RunTrace:
    """Train a copy of the model over replayed batches; an error ends the run and is written down."""
    trace = RunTrace()
    watched = replace(mechanism, noise=TracedNoise(mechanism.noise, trace.releases.append))
    own = copy.deepcopy(model)
    source = TracedSource(seed, trace.draws)
    with (
        torch.random.fork_rng(),
        privatizer(own, watched, batches, noise_source=source, public_seed=seed, **options) as private,
    ):
        torch.manual_seed(seed)
        try:
            loop(private, batches, own)
        except (ValueError, RuntimeError, ArithmeticError) as error:
            trace.error = error
        trace.ledger = private.ledger.phases
    return trace


class TracedSource(NoiseSource):
    """A seeded source that writes down how many draws were asked for."""

    private = False
    std = SeededSource.std

    def __init__(self, seed: int, log: list[int]) -> None:
        self._source, self._log = SeededSource(seed), log

    def fill(self, out: Tensor) -> None:
        self._log.append(len(out))
        self._source.fill(out)

    def bits(self, count: int) -> Tensor:
        self._log.append(count)
        return self._source.bits(count)


@dataclass(frozen=True)
class TracedNoise(Noise):
    """The mechanism's noise, with a note of everything that goes in and comes out."""

    noise: Noise
    note: Callable[[TracedRelease], None]

    def __post_init__(self) -> None:
        # What the class of a noise says of itself holds for its wrapper too.
        for name in ("one_release", "needs_fixed_space"):
            object.__setattr__(self, name, getattr(self.noise, name))

    def multiplier(self, noise_multiplier: float, step: int) -> float:
        return self.noise.multiplier(noise_multiplier, step)

    def event(self, noise_multiplier: float, step: int) -> Event:
        return self.noise.event(noise_multiplier, step)

    def init(self, space: Space) -> NoiseState:
        return self.noise.init(space)

    def grid_steps(self, source: NoiseSource) -> float:
        return self.noise.grid_steps(source)

    def release(self, total: ClippedSum, draw: NoiseDraw, state: NoiseState) -> tuple[Released, NoiseState]:
        released, state = self.noise.release(total, draw, state)
        self.note(TracedRelease(draw.step, total, draw.std, draw.divisor, released))
        return released, state
