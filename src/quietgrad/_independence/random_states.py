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
    device: Tensor | None

    @classmethod
    def capture(cls) -> RandomStates:
        """Read all states; nothing is drawn."""
        python, numpy = random.getstate(), np.random.get_state(legacy=True)
        module = _used_device_module()
        device = None if module is None else module.get_rng_state()
        return cls(python, numpy, torch.get_rng_state(), device)  # type: ignore[arg-type]

    def restore(self) -> None:
        """Put all states back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        module = _used_device_module()
        if self.device is not None and module is not None:
            module.set_rng_state(self.device)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomStates):
            return NotImplemented
        return (
            self.python == other.python
            and self.numpy[2:] == other.numpy[2:]
            and np.array_equal(self.numpy[1], other.numpy[1])
            and torch.equal(self.torch, other.torch)
            and (self.device is None) == (other.device is None)
            and (self.device is None or other.device is None or torch.equal(self.device, other.device))
        )

    __hash__ = None  # type: ignore[assignment]


def _used_device_module() -> Any:
    """Return torch's module of the device in use; None where there is none, or no program has used it.

    Asking an unused CUDA for its state would initialise it, with gigabytes of memory. A model lies on one device, which
    is the current one.
    """
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    return module if module is not None and module.is_initialized() else None
