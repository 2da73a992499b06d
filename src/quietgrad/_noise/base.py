"""The second border: ClippedSum ──noise──▶ Released."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from quietgrad._collective import Reducer
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.sources import NoiseSource
from quietgrad.accounting import events
from quietgrad.accounting.calibrate import Steps


@dataclass(frozen=True, kw_only=True)
class NoiseDraw:
    """One draw of noise onto a sum: how wide, from where, with which other ranks.

    Args:
        std: on each coordinate of the sum over all ranks.
        divisor: qN, the expected size of a batch; public, unlike its real size.
        source: where its integers come from.
        reducer: adds this rank's part to the others'.
        step: of the run, for noise that changes over steps.

    Example:
        draw = qg.NoiseDraw(std=1.0, divisor=64.0, source=source, reducer=reducer, step=0)
        released = qg.Gaussian().release(total, draw)
    """

    std: float
    divisor: float
    source: NoiseSource
    reducer: Reducer
    step: int


class Noise(ABC):
    """Turns a clipped sum into a release, and says what that costs.

    Example:
        noise: qg.Noise = qg.Gaussian()
        event = noise.event(1.1, step=0)
    """

    @abstractmethod
    def multiplier(self, noise_multiplier: float, step: int) -> float:
        """The effective Gaussian multiplier of a step.

        Raises:
            ValueError: it is not above 0 where noise is wanted.
        """

    @abstractmethod
    def event(self, noise_multiplier: float, step: int) -> events.Event:
        """What all releases of a step cost together."""

    def for_budget(self, batches: Steps, *, epsilon: float, delta: float) -> Noise:
        """The noise whose parts, beside σ, are fixed by the budget: what calibration asks before it searches σ."""
        return self

    @abstractmethod
    def release(self, total: ClippedSum, draw: NoiseDraw) -> Released:
        """(Σ over ranks of total + std·z)/divisor."""
