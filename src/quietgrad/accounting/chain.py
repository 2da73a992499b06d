"""The lines of a ledger file: JSON, each with the hash of itself and of everything before it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from quietgrad.accounting.events import Phase, phase_to_dict

VERSION = 1


def header_of(plan: tuple[Phase, ...] | None, description: Mapping[str, Any]) -> dict[str, Any]:
    """The first line's content, as it would come back from a file."""
    phases = None if plan is None else [phase_to_dict(phase) for phase in plan]
    header = {"quietgrad_ledger": VERSION, "plan": phases, "description": dict(description)}
    loaded: dict[str, Any] = json.loads(canonical(header))
    return loaded


def canonical(entry: Mapping[str, Any]) -> str:
    """The one spelling of an entry that is hashed and written."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(head: str, entry: Mapping[str, Any]) -> str:
    """The hash of an entry that follows the line with hash `head`."""
    return hashlib.sha256((head + canonical(entry)).encode()).hexdigest()


def line_of(entry: Mapping[str, Any], hash_: str) -> bytes:
    """An entry as it stands in the file."""
    return (canonical({**entry, "hash": hash_}) + "\n").encode()


def write_line(file: IO[bytes], entry: Mapping[str, Any], hash_: str) -> None:
    """Append a line and wait until it is on the disk."""
    line = line_of(entry, hash_)
    written = file.write(line)
    if written != len(line):
        raise OSError(f"Only {written} of {len(line)} bytes of a ledger line were written. Is the disk full?")
    os.fsync(file.fileno())


def parse_line(line: bytes, head: str, path: Path, number: int) -> tuple[dict[str, Any], str]:
    """One line checked against the chain: (entry, hash)."""
    try:
        entry = json.loads(line)
        claimed = entry.pop("hash")
        honest = claimed == digest(head, entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected a whole line {number} in the ledger {path}, got {line[:60]!r}. Restore it from a "
            "backup."
        ) from error
    if not honest:
        raise ValueError(
            f"Expected line {number} of the ledger {path} to continue the chain of hashes; it, or a "
            "line before it, was edited, removed or swapped. Restore the ledger from a backup."
        )
    return entry, claimed


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> str:
    """The message for a ledger whose header belongs to another run."""
    keys = [key for key in new if old.get(key) != new[key]]
    was, now = ({key: source.get(key) for key in keys} for source in (old, new))
    return (
        f"Expected the ledger {path} of the same run, but {' and '.join(keys)} changed: it was "
        f"{canonical(was)}, now {canonical(now)}. Resume with the old parameters, or start a new run with a new ledger."
    )


def lock(file: IO[bytes], path: Path) -> None:
    """One writer at a time: two processes appending would break the chain."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ValueError(
            f"Expected the ledger {path} to be free, but another process writes to it. Wait for it or "
            "use another path."
        ) from error


def sync_folder(path: Path) -> None:
    """A new file is durable only once its folder is."""
    if sys.platform == "win32":
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
