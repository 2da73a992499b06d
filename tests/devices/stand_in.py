"""The device "standin": install it, move models to it, and see what a real device would refuse or wait for."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.utils import backend_registration

from tests.devices.build import compiled_library

NAME = "standin"
REPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
_library: ctypes.CDLL | None = None


def install() -> bool:
    """Make `torch.device("standin")` work; False when it was never compiled.

    Must come before the first backward of the process: autograd then starts one thread for each device it knows.
    """
    global _library
    if _library is None and compiled_library().exists():
        backend_registration.rename_privateuse1_backend(NAME)
        _library = ctypes.CDLL(str(compiled_library()))
        torch._register_device_module(NAME, _device_module())
        backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    return _library is not None


def _device_module() -> types.ModuleType:
    """Return `torch.standin`. It says that it is not available, so that no library takes it for a GPU."""
    ops = torch.ops.standin
    module = types.ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: False,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda _=None: None,
        "device": lambda _: contextlib.nullcontext(),
        "get_rng_state": lambda _=NAME: ops.rng_state(),
        "set_rng_state": lambda state, _=NAME: ops.set_rng_state(state),
        "manual_seed": lambda seed: ops.manual_seed(seed),
        "manual_seed_all": lambda seed: ops.manual_seed(seed),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


@dataclass
class Watched:
    """What was reported: how often, by operator and line of quietgrad.

    Args:
        mixed: operators whose operands, or generator, were on two devices: an error on a GPU.
        waits: where the host waits for the device.
    """

    mixed: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def watching(*, strict: bool = True) -> Iterator[Watched]:
    """Collect reports; operators that mix devices raise, as on a GPU, unless `strict` is False."""
    assert _library is not None
    watched = Watched()

    def take(kind: bytes, operator: bytes) -> int:
        what = f"{operator.decode()} at {_line()}"
        if kind == b"mixed":
            watched.mixed[what] += 1
            return int(strict)
        if kind == b"wait":
            watched.waits[what] += 1
        return 0

    function = REPORT(take)
    _library.standin_listen(function)
    try:
        yield watched
    finally:
        _library.standin_listen(REPORT())


def _line() -> str:
    """Return the innermost line of the library on the stack, else the innermost outside torch."""
    frame: types.FrameType | None = sys._getframe(2)
    first = None
    while frame is not None:
        name = frame.f_code.co_filename
        if "/src/quietgrad/" in name:
            return f"{name.split('/src/quietgrad/')[1]}:{frame.f_lineno}"
        if first is None and "/torch/" not in name and "<" not in name:
            first = f"{name.rsplit('/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return first or "?"
