"""Makes the view that public code gets of a step: it holds no batch, no per-sample gradient and no sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxtyping import Float
from torch import Tensor

from quietgrad.capture.losses import check_losses
from quietgrad.capture.recorder import Recorder
from quietgrad.gradients.blocks import Space
from quietgrad.gradients.stages import PerSampleGrads
from quietgrad.representations.public import Public, PublicLosses, public_randomness


class PublicView:
    """What is public about a run, for one step after the other.

    The recorder is the one thing shared with the private side: inside `nested()` it knows the public forward only.
    """

    def __init__(self, recorder: Recorder, *, steps: int, rate: float) -> None:
        self._recorder, self._steps, self._rate = recorder, steps, rate
        self.space: Space = {name: p.shape for name, p in recorder.parameters.items()}

    def at(self, step: int, run_seed: int) -> Public:
        """The view of a step, under that step's public seed."""
        seed = (run_seed * 1_000_003 + step) % 2**62
        recorder = self._recorder
        return Public(
            parameters={name: p.detach() for name, p in recorder.parameters.items()},
            space=self.space,
            step=step,
            steps=self._steps,
            rate=self._rate,
            seed=seed,
            gradients=lambda public_losses: public_gradients(recorder, public_losses, seed),
            codec=_unwired,
            observe=_unwired,
            inside=_unwired,
        )


def public_gradients(recorder: Recorder, public_losses: PublicLosses, seed: int) -> Iterator[PerSampleGrads]:
    """Per-sample gradients of public losses under a public seed: the same each time they are asked for in a step."""
    with public_randomness(seed), recorder.nested():
        losses = public_losses(recorder.model)
        for chunk in _chunks(losses):
            check_losses(chunk)
            yield recorder.collect(chunk.flatten())


def _chunks(losses: Tensor | Iterator[Tensor]) -> Iterator[Float[Tensor, " m"]]:
    return iter([losses]) if isinstance(losses, Tensor) else losses


def _unwired(*_: Any) -> Any:
    raise AssertionError("a public view is wired by Refresher.begin")
