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
    """Hold the states of the global generators of Python, numpy, torch and its devices at one moment.

    Args:
        python, numpy: None where they were left out.
        torch, device: of the processor, and of the device in use.
    """

    python: tuple[Any, ...] | None
    numpy: tuple[Any, ...] | None
    torch: Tensor
    device: Tensor | None

    @classmethod
    def capture(cls, *, python: bool = True, numpy: bool = True) -> RandomStates:
        """Read the states; nothing is drawn. Those of torch take a microsecond, the other two a hundred."""
        module = _used_device_module()
        return cls(
            random.getstate() if python else None,
            np.random.get_state(legacy=True) if numpy else None,  # type: ignore[arg-type]
            torch.get_rng_state(),
            None if module is None else module.get_rng_state(),
        )

    def restore(self) -> None:
        """Put back what was read."""
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
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
            and self.has_same_numpy(other)
            and torch.equal(self.torch, other.torch)
            and (self.device is None) == (other.device is None)
            and (self.device is None or other.device is None or torch.equal(self.device, other.device))
        )

    def has_same_numpy(self, other: RandomStates) -> bool:
        """Whether numpy's generator has not moved in between."""
        if self.numpy is None or other.numpy is None:
            return self.numpy is other.numpy
        return self.numpy[2:] == other.numpy[2:] and np.array_equal(self.numpy[1], other.numpy[1])

    __hash__ = None  # type: ignore[assignment]


def _used_device_module() -> Any:
    """Return torch's module of the device in use; None where there is none, or no program has used it.

    Asking an unused CUDA for its state would initialise it, with gigabytes of memory. A model lies on one device, which
    is the current one.
    """
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    return module if module is not None and module.is_initialized() else None
