"""The public view: all that representations and post-processing may look at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quietgrad.gradients.blocks import Space
from quietgrad.gradients.stages import PerSampleGrads, Released

if TYPE_CHECKING:
    from quietgrad.representations.base import Codec, Representation

PublicLosses = Callable[[nn.Module], Tensor | Iterator[Tensor]]
"""`model -> losses[m]` on non-sensitive data; may yield chunks so that many public samples fit in memory."""


@dataclass(frozen=True, kw_only=True)
class Public:
    """All that a representation or a post-processing may look at: it holds no way to the private batch.

    Args:
        parameters: the current values of the trainable parameters (functions of past releases).
        space: the blocks in which gradients arrive at this representation.
        step, steps, rate: where in the plan this step is.
        seed: public randomness of this step, the same on every rank.
        gradients: per-sample gradients of public losses, in `space`, in chunks.
        codec: this step's codec of another representation of the same space, refreshed once and shared.
        observe: tell another representation of the same space what was released.
        inside: the public view inside another representation: its encoded space, public gradients encoded too.
        since: the step from which on `space` means what it means now; after a new mask, older bases are stale.
    """

    parameters: Mapping[str, Tensor]
    space: Space
    step: int
    steps: int
    rate: float
    seed: int
    gradients: Callable[[PublicLosses], Iterator[PerSampleGrads]]
    codec: Callable[[Representation], Codec]
    observe: Callable[[Representation, Released], None]
    inside: Callable[[Representation], Public]
    since: int = 0

    @property
    def epoch(self) -> int:
        """Completed passes over the data in expectation."""
        return int(self.step * self.rate + 1e-9)

    def generator(self, salt: int = 0) -> torch.Generator:
        """A fresh public generator of this step; different salts give independent streams."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + salt) % 2**63)


@contextlib.contextmanager
def public_randomness(seed: int) -> Iterator[None]:
    """Run public code (dropout, random labels) under a public seed; the caller's global rng is untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
