"""What a test must read inside of a Privatizer because nothing public shows it: the only place that does."""

from __future__ import annotations

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from quietgrad._noise.base import NoiseState


def noise_state(private: qg.Privatizer) -> NoiseState:
    """Return what the noise of the first release remembers, its secret part included."""
    state = private._state
    return state.noise.get(0, state.space)


def recorder_of(private: qg.Privatizer) -> Recorder:
    """Return what captures the gradients of a Privatizer's model."""
    return private._recorder
