"""What the noise of a run remembers from draw to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quietgrad._gradients.space import Space
from quietgrad._noise.base import Noise, NoiseState


class NoiseStates:
    """The states of a run's noise: release j of a draw continues release j of the draw before.

    Formal guarantee: a checkpoint holds the public part of each state alone, and a resumed run begins with fresh secret
    parts. Checked by: tests/release/test_noise_with_memory.py.

    Args:
        noise: makes the first state of each release.
    """

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self._states: dict[int, NoiseState] = {}
        self._saved: dict[int, dict[str, Any]] = {}

    def get(self, index: int, space: Space) -> NoiseState:
        """Return the state of a release, made for its space at first use."""
        if index in self._states:
            return self._states[index]
        fresh = self.noise.init(space)
        # After a resume the public part goes on. The secret part was never saved, so it is that of a new run.
        return replace(fresh, public=self._saved[index]) if index in self._saved else fresh

    def put(self, index: int, state: NoiseState) -> None:
        """Replace the state of a release."""
        self._states[index] = state

    def forget_secrets(self) -> None:
        """Go on with fresh secrets, as a resumed run does."""
        self._saved, self._states = self._public, {}

    @property
    def _public(self) -> dict[int, dict[str, Any]]:
        return self._saved | {index: state.public for index, state in self._states.items()}

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the public parts for a checkpoint; releases without one are left out."""
        return {str(index): part for index, part in self._public.items() if part}

    def load_state_dict(self, saved: Mapping[str, dict[str, Any]]) -> None:
        """Go on from a checkpoint, forgetting every secret."""
        self._states, self._saved = {}, {int(index): public for index, public in saved.items()}
