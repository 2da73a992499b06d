"""How far a run has come: everything public that goes from one step to the next, and into a checkpoint."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._capture.losses import check_losses
from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.row_arithmetic import at_least_single
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import PerSampleGrads
from quietgrad._kernels.generators import fork_generators
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._release.noise_states import NoiseStates
from quietgrad._representations.base import Codecs, Public, PublicLosses, State, States
from quietgrad._sampling.poisson import PoissonSampler


class RunState:
    """The step, the public seed, and what representations, noise and post-processing remember.

    Args:
        recorder: the engine, for gradients of public losses.
        mechanism: whose noise and post-processing remember something.
        sampler: says the run's rate and number of steps.
        seed: of the run's public randomness.
        shard: which shard of a sharded model this process holds, of how many.
        noise: what `Public.noise` says.
    """

    def __init__(
        self,
        recorder: Recorder,
        mechanism: Mechanism,
        sampler: PoissonSampler,
        *,
        seed: int,
        shard: tuple[int, int] | None = None,
        noise: float = 0.0,
    ) -> None:
        self._parameters: Mapping[str, nn.Parameter] = recorder.parameters
        self.space = Space.of_parameters(recorder.parameters, shard=shard)
        self._public_space = self.space.restrict(self.space)  # without a way to the parameters
        self._collect, self._post = PublicGradients(recorder), mechanism.post
        self._steps, self._rate, self._run_noise = sampler.steps, sampler.rate, noise
        self.step, self.seed = 0, seed
        self._states = States()
        self.noise = NoiseStates(mechanism.noise)
        self._post_states: list[State] = []

    def public(self) -> Public:
        """The view of this step at the weights as they are now; what representations learn through it is kept."""
        return self._public(self._states)

    def preview(self) -> Public:
        """Return the same, to look at: nothing of it is kept."""
        return self._public(self._states.copy())

    def post_process(self, update: Blocks, public: Public) -> Blocks:
        """Return what the mechanism's post-processing makes of the decoded release."""
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
            "noise": self.noise.state_dict(),
            "post": list(self._post_states),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.step, self.seed = saved["step"], saved["public_seed"]
        self._states, self._post_states = States(saved["representations"]), list(saved["post"])
        self.noise.load_state_dict(saved.get("noise", {}))  # absent in checkpoints of 0.2

    def _public(self, states: States) -> Public:
        return Public(
            parameters={name: at_least_single(p.detach()) for name, p in self._parameters.items()},
            space=self._public_space,
            step=self.step,
            steps=self._steps,
            rate=self._rate,
            seed=step_seed(self.seed, self.step),
            collect=self._collect,
            codecs=Codecs(states),
            noise=self._run_noise,
        )


def noise_of_run(mechanism: Mechanism, sampler: PoissonSampler) -> float:
    """Return σ/(qN√T), the noise of a whole run on the mean gradient in units of the clip; of public numbers only."""
    sigma = mechanism.noise_multiplier or 0.0
    return sigma / (sampler.expected_batch * math.sqrt(sampler.steps)) if sampler.expected_batch > 0 else 0.0


class PublicGradients:
    """Take per-sample gradients of public losses: all that public code can do with the engine.

    Args:
        engine: shared with the private side; inside `public_forward()` it refuses private inputs.
    """

    def __init__(self, engine: Recorder) -> None:
        self._engine = engine

    def __call__(self, public_losses: PublicLosses, seed: int) -> Iterator[PerSampleGrads]:
        """Yield gradients in chunks, under a public seed: the same each time they are asked for in a step."""
        device = next(iter(self._engine.parameters.values())).device
        with public_randomness(seed, device), self._engine.public_forward():
            for chunk in _chunks(public_losses(self._engine.model)):
                check_losses(chunk)
                yield self._engine.collect(chunk.flatten())


def step_seed(run_seed: int, step: int) -> int:
    """Return the public seed of a step."""
    return (run_seed * 1_000_003 + step) % 2**62


@contextlib.contextmanager
def public_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Run public code (dropout, random labels) under a public seed; the caller's global rng is untouched."""
    with fork_generators(device):
        torch.manual_seed(seed)
        yield


def _chunks(losses: Tensor | Iterator[Tensor]) -> Iterator[Float[Tensor, " m"]]:
    return iter([losses]) if isinstance(losses, Tensor) else losses
