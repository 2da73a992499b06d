"""The second border: ClippedSum ──noise──▶ Released."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quietgrad.accounting import events
from quietgrad.collective import Reducer
from quietgrad.gradients.stages import ClippedSum, Released
from quietgrad.noise.sources import NoiseSource


class Noise(ABC):
    """Turns a clipped sum into a release, and says what that costs."""

    @abstractmethod
    def multiplier(self, noise_multiplier: float, step: int) -> float:
        """The effective Gaussian multiplier of a step."""

    @abstractmethod
    def event(self, noise_multiplier: float, step: int) -> events.Event:
        """What all releases of a step cost together."""

    @abstractmethod
    def release(
        self,
        total: ClippedSum,
        *,
        std: float,
        divisor: float,
        source: NoiseSource,
        reducer: Reducer,
        step: int,
    ) -> Released:
        """(total + std·z)/divisor, summed over ranks."""
