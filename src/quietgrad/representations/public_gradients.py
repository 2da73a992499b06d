"""Per-sample gradients of public losses: the one thing that public code has of the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad.capture.recorder import Recorder
from quietgrad.capture.validation import check_losses
from quietgrad.gradients.stages import PerSampleGrads
from quietgrad.representations.public import PublicLosses


class PublicGradients:
    """Runs public losses through the engine, apart from whatever private batch is under way.

    Args:
        engine: shared with the private side; inside `nested()` it knows the public forward only.
    """

    def __init__(self, engine: Recorder) -> None:
        self._engine = engine

    def __call__(self, public_losses: PublicLosses, seed: int) -> Iterator[PerSampleGrads]:
        """In chunks, under a public seed: the same each time they are asked for in a step."""
        with public_randomness(seed), self._engine.nested():
            for chunk in _chunks(public_losses(self._engine.model)):
                check_losses(chunk)
                yield self._engine.collect(chunk.flatten())


def step_seed(run_seed: int, step: int) -> int:
    """The public seed of a step."""
    return (run_seed * 1_000_003 + step) % 2**62


@contextlib.contextmanager
def public_randomness(seed: int) -> Iterator[None]:
    """Run public code (dropout, random labels) under a public seed; the caller's global rng is untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _chunks(losses: Tensor | Iterator[Tensor]) -> Iterator[Float[Tensor, " m"]]:
    return iter([losses]) if isinstance(losses, Tensor) else losses
