"""The states of all global random generators, so that a pass can be repeated with the same random numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomStates:
    """Hold the states of the global generators of Python, numpy, torch and its devices at one moment."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    cuda: tuple[Tensor, ...]

    @classmethod
    def capture(cls) -> RandomStates:
        """Read all states; nothing is drawn."""
        # Asking an unused CUDA for its state would initialise it, with gigabytes of memory.
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
        return cls(random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state(), cuda)  # type: ignore[arg-type]

    def restore(self) -> None:
        """Put all states back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomStates):
            return NotImplemented
        return (
            self.python == other.python
            and self.numpy[2:] == other.numpy[2:]
            and np.array_equal(self.numpy[1], other.numpy[1])
            and torch.equal(self.torch, other.torch)
            and len(self.cuda) == len(other.cuda)
            and all(map(torch.equal, self.cuda, other.cuda))
        )

    __hash__ = None  # type: ignore[assignment]
