"""Measured times of algorithms: kept for as long as a tuner lives, and in a folder if the user names one.

`QUIETGRAD_CACHE=<folder>` keeps times for the next run, which then starts tuned. A file holds, for one processor, torch
and code, milliseconds a sample of each algorithm for each shape of layer. The number of samples is not in it. The
positions of a sample are: where batches are padded to their longest record, that is a record's length. So only the user
may read the file, and it is not for publishing.

Checked by: tests/gradients/test_tuning.py
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch

from quietgrad._kernels import levels, library

VARIABLE = "QUIETGRAD_CACHE"

Times = dict[str, float]
"""Algorithm → milliseconds a sample."""


def folder() -> Path | None:
    """Return where times are kept; None, the default, keeps nothing. "off" was 0.2's word for that."""
    chosen = os.environ.get(VARIABLE)
    return None if chosen in (None, "", "off") else Path(chosen)


def machine() -> str:
    """Hash what times depend on beside the shape."""
    parts = (
        platform.machine(),
        platform.processor(),
        str(os.cpu_count()),
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        levels.level(),
        code(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def code() -> str:
    """Hash the kernels as they were built and the algorithms as they are written: others take other times."""
    native = library.native()
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256()
    for file in sources if native is None else [*sources, Path(native._name)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


class MeasuredTimes:
    """Times by shape. A file is read once and written after each measurement; one that cannot be is done without."""

    def __init__(self) -> None:
        place = folder()
        self._file = None if place is None else place / f"times-{machine()}.json"
        self._known = self._read()

    def of(self, shape: tuple[Any, ...]) -> Times:
        """Return what was measured for a shape, perhaps nothing."""
        return dict(self._known.get(repr(shape), {}))

    def keep(self, shape: tuple[Any, ...], times: Times) -> None:
        """Add times; what another process has written in the meantime stays."""
        # Read again before writing. Two processes may still lose one another's newest line, which costs a
        # measurement.
        merged = {**self._read(), **self._known}
        merged[repr(shape)] = {**merged.get(repr(shape), {}), **times}
        self._known = merged
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._write(self._file)

    def _read(self) -> dict[str, Times]:
        if self._file is None:
            return {}
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {
                str(shape): {str(algorithm): float(time) for algorithm, time in times.items()}
                for shape, times in found.items()
            }
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return {}

    def _write(self, file: Path) -> None:
        """Replace the file as a whole: another process reads the old or the new one, never half of it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(self._known, out)
        Path(name).replace(file)
