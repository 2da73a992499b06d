"""The global generators, from which loops draw dropout masks and augmentations."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class GeneratorStates:
    """Hold the states of the CPU's generator and of one device's at one moment."""

    cpu: Tensor
    device: torch.device
    on_device: Tensor | None

    @classmethod
    def capture(cls, device: torch.device) -> GeneratorStates:
        """Read both states; nothing is drawn."""
        on_device = None
        if device.type != "cpu":
            on_device = torch.get_device_module(device).get_rng_state(device)
        return cls(torch.get_rng_state(), device, on_device)

    def restore(self) -> None:
        """Put both states back."""
        torch.set_rng_state(self.cpu)
        if self.on_device is not None:
            torch.get_device_module(self.device).set_rng_state(self.on_device, self.device)


@contextlib.contextmanager
def fork_generators(device: torch.device) -> Iterator[None]:
    """Put the generators back to where they were, whatever is drawn inside."""
    states = GeneratorStates.capture(device)
    try:
        yield
    finally:
        states.restore()


def renew_generators() -> None:
    """Seed the global generators of Python, numpy and torch by the operating system.

    After a published seed, everybody would know the masks and views of row 0, 1, 2, … of each step. Which of them a
    record met says how many were drawn before it, and amplification by sampling rests on that being secret.

    Checked by: tests/attacks/test_published_seeds.py
    """
    random.seed()
    np.random.seed()
    # torch.seed() takes 64 bits, which some devices' generators refuse.
    torch.manual_seed(secrets.randbits(63))
