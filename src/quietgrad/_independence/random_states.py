"""The states of all global random generators, so that a pass can be repeated with the same random numbers."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

MT19937_BYTES = (624 + 1) * 4
"""Of a Mersenne twister: 624 words, and the place of the next one."""


@dataclass(frozen=True)
class RandomStates:
    """Hold the states of the global generators of Python, numpy, torch and its devices at one moment.

    Args:
        python, numpy: of these.
        torch, device: of the processor, and of the device in use.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    device: Tensor | None

    @classmethod
    def capture(cls) -> RandomStates:
        """Read the states; nothing is drawn. Numpy takes most of the time, up to a hundred microseconds."""
        return cls._with_numpy(_numpy_state())

    @classmethod
    def _with_numpy(cls, numpy: tuple[Any, ...]) -> RandomStates:
        module = _used_device_module()
        device = None if module is None else module.get_rng_state()
        return cls(random.getstate(), numpy, torch.get_rng_state(), device)

    def restore(self) -> None:
        """Put back what was read."""
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
            and self._has_same_numpy(other)
            and torch.equal(self.torch, other.torch)
            and (self.device is None) == (other.device is None)
            and (self.device is None or other.device is None or torch.equal(self.device, other.device))
        )

    def _has_same_numpy(self, other: RandomStates) -> bool:
        return self.numpy[2:] == other.numpy[2:] and np.array_equal(self.numpy[1], other.numpy[1])

    __hash__ = None  # type: ignore[assignment]


class RandomStateReader:
    """Read the states before every micro-batch, and numpy's anew only where it may have moved.

    Most loops never draw from numpy. Its generator's own bytes say so in half a microsecond, and reading its state
    takes fifty. A loop may begin to draw at any step, so nothing is concluded from the first ones.
    """

    def __init__(self) -> None:
        self._numpy: tuple[Any, ...] | None = None
        self._bytes: bytes | None = None
        self._moves = False
        """Whether the generator has moved between two micro-batches: then it is read each time."""

    def read(self) -> RandomStates:
        """Return the states as they are now."""
        found = _bytes_of_numpy()
        known = self._numpy
        # The second number of a Gaussian pair waits outside of these bytes, at place 3 of a state.
        if known is None or self._moves or found is None or found != self._bytes or known[3]:
            self._moves = self._moves or (known is not None and found != self._bytes)
            known = _numpy_state()
            self._numpy, self._bytes = known, found
        return RandomStates._with_numpy(known)


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=True)
    return tuple(state)


def _bytes_of_numpy() -> bytes | None:
    """Return the words and the place of numpy's global generator; None if it is not the usual one."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # numpy's stubs leave it out
    if not isinstance(generator, np.random.MT19937):
        return None
    return ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES)


def _used_device_module() -> Any:
    """Return torch's module of the device in use; None where there is none, or no program has used it.

    Asking an unused CUDA for its state would initialise it, with gigabytes of memory. A model lies on one device, which
    is the current one.
    """
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    return module if module is not None and module.is_initialized() else None
