"""How far a run has come: everything public that goes from one step to the next, and into a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.capture.recorder import Recorder, check_losses
from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.row_arithmetic import at_least_single
from quietgrad.gradients.stages import PerSampleGrads
from quietgrad.mechanism.post import Post
from quietgrad.representations.base import State
from quietgrad.representations.public import Codecs, Public, PublicLosses, States
from quietgrad.sampling.poisson import PoissonSampler


class RunState:
    """The step, the public seed, and what representations and post-processing remember.

    Args:
        recorder: the engine, for gradients of public losses.
        post: the mechanism's post-processing.
        sampler: says the run's rate and number of steps.
        seed: of the run's public randomness.
    """

    def __init__(
        self, recorder: Recorder, post: tuple[Post, ...], sampler: PoissonSampler, *, seed: int
    ) -> None:
        self._parameters: Mapping[str, nn.Parameter] = recorder.parameters
        self._collect, self._post = PublicGradients(recorder), post
        self._steps, self._rate = sampler.steps, sampler.rate
        self.step, self.seed = 0, seed
        self._states = States()
        self._post_states: list[State] = []

    def public(self) -> Public:
        """The view of this step at the weights as they are now; what representations learn through it is kept."""
        return self._public(self._states)

    def preview(self) -> Public:
        """The same, to look at: nothing of it is kept."""
        return self._public(self._states.copy())

    def post_process(self, update: Blocks, public: Public) -> Blocks:
        """What the mechanism's post-processing makes of the decoded release."""
        self._post_states = self._post_states or [post.init(public) for post in self._post]
        for index, post in enumerate(self._post):
            update, self._post_states[index] = post.apply(update, public, self._post_states[index])
        return update

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "step": self.step,
            "public_seed": self.seed,
            "representations": self._states.state_dict(),
            "post": list(self._post_states),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.step, self.seed = saved["step"], saved["public_seed"]
        self._states, self._post_states = States(saved["representations"]), list(saved["post"])

    def _public(self, states: States) -> Public:
        return Public(
            parameters={name: at_least_single(p.detach()) for name, p in self._parameters.items()},
            space={name: p.shape for name, p in self._parameters.items()},
            step=self.step,
            steps=self._steps,
            rate=self._rate,
            seed=step_seed(self.seed, self.step),
            collect=self._collect,
            codecs=Codecs(states),
        )


class PublicGradients:
    """Runs public losses through the engine, apart from whatever private batch is under way: all that public code has
    of the engine.

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
