"""Measured times of ways, kept in the user's cache: a second run starts tuned.

A file holds, for one processor, torch and code of the ways, milliseconds a sample of each way for each shape of layer.
How many samples a batch held is not in it. The positions of a sample are: where batches are padded to their longest
record, that is a record's length, so only the user may read the file, and it is not for publishing. `QUIETGRAD_CACHE`
names another folder, or `off`.
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

from quietgrad._kernels import library

VARIABLE = "QUIETGRAD_CACHE"

Times = dict[str, float]
"""Way → milliseconds a sample."""


def folder() -> Path | None:
    """Where the file is; None where nothing is to be kept."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "quietgrad"


def machine() -> str:
    """What times depend on beside the shape."""
    parts = (
        platform.machine(),
        platform.processor(),
        str(os.cpu_count()),
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        library.level(),
        code(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def code() -> str:
    """Of the kernels as they were built and of the ways as they are written: another one takes other times."""
    native = library.native()
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256()
    for file in sources if native is None else [*sources, Path(native._name)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


class RememberedTimes:
    """Read once, written whenever something was measured; a file that cannot be read or written is done without."""

    def __init__(self) -> None:
        place = folder()
        self._file = None if place is None else place / f"ways-{machine()}.json"
        self._known = self._read()

    def of(self, shape: tuple[Any, ...]) -> Times:
        """What was measured for a shape, perhaps nothing."""
        return dict(self._known.get(repr(shape), {}))

    def keep(self, shape: tuple[Any, ...], times: Times) -> None:
        """Add times; what another process has written in the meantime stays."""
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
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(self._known, out)
        Path(name).replace(file)
