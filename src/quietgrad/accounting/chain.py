"""The lines of a ledger file: JSON, each with the hash of itself and of everything before it.

Without a key the chain guards against accidents: a line that was torn, edited, lost or swapped by mistake, or a ledger
of another run. Whoever may write the file can also write a new chain. With a secret in QUIETGRAD_LEDGER_KEY the hashes
are HMACs: nobody without the secret can make a line or a ledger that passes.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from quietgrad._errors import PrivacyError
from quietgrad.accounting.disk import disk, sync_folder
from quietgrad.accounting.events import Phase, phase_to_dict

VERSION = 1
"""Of the file format."""

KEY_VARIABLE = "QUIETGRAD_LEDGER_KEY"
"""The environment variable that may hold the secret of the chain."""


def key_from_environment() -> bytes | None:
    """Return the secret, None if there is none."""
    secret = os.environ.get(KEY_VARIABLE)
    return secret.encode() if secret else None


def header_of(
    plan: tuple[Phase, ...] | None, description: Mapping[str, Any], *, keyed: bool
) -> dict[str, Any]:
    """Return the content of the first line, as it would come back from a file."""
    phases = None if plan is None else [phase_to_dict(phase) for phase in plan]
    header = {"quietgrad_ledger": VERSION, "plan": phases, "description": dict(description)}
    if keyed:
        header["keyed"] = True
    loaded: dict[str, Any] = json.loads(canonical(header))
    return loaded


def canonical(entry: Mapping[str, Any]) -> str:
    """Return the one spelling of an entry that is hashed and written."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(head: str, entry: Mapping[str, Any], key: bytes | None) -> str:
    """Hash an entry that follows the line with hash `head`: SHA-256, or HMAC-SHA-256 with a key."""
    content = (head + canonical(entry)).encode()
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def line_of(entry: Mapping[str, Any], hash_: str) -> bytes:
    """Return an entry as it stands in the file."""
    return (canonical({**entry, "hash": hash_}) + "\n").encode()


def write_line(file: IO[bytes], entry: Mapping[str, Any], hash_: str) -> None:
    """Append a line and wait until it is on the disk."""
    write_bytes(file, line_of(entry, hash_))


def write_bytes(file: IO[bytes], content: bytes) -> None:
    """Append all of it and wait until it is on the disk.

    Raises:
        OSError: a part was written, or nothing.
    """
    written = disk().write(file, content)
    if written != len(content):
        raise OSError(errno.ENOSPC, f"Only {written} of {len(content)} bytes of the ledger fit onto the disk")
    disk().sync(file.fileno())


def check_keyed(header: Mapping[str, Any], key: bytes | None, path: Path) -> None:
    """Refuse a keyed ledger without its key, and with a key one that anybody may have written.

    Raises:
        PrivacyError: key and ledger do not fit.
    """
    keyed = bool(header.get("keyed"))
    if keyed and key is None:
        raise PrivacyError(
            f"The ledger {path} is keyed. Set {KEY_VARIABLE} to its secret, without which it proves nothing."
        )
    if key is not None and not keyed:
        raise PrivacyError(
            f"{KEY_VARIABLE} is set, but the ledger {path} was written without a key: anybody could have written it. "
            "Unset the variable for runs that began without it."
        )


def parse_line(
    line: bytes, head: str, path: Path, number: int, key: bytes | None
) -> tuple[dict[str, Any], str]:
    """Check one line against the chain and return (entry, hash).

    Raises:
        PrivacyError: it is torn, or does not continue the chain.
    """
    try:
        entry = json.loads(line)
        claimed = entry.pop("hash")
        if number == 1:
            check_keyed(entry, key, path)
        honest = hmac.compare_digest(claimed, digest(head, entry, key))
        # The hash is of what was parsed: a line that says a thing twice would show one and prove the other.
        honest = honest and line.strip() == line_of(entry, claimed).strip()
    except (
        json.JSONDecodeError,
        UnicodeDecodeError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise PrivacyError(
            f"Expected a whole line {number} in the ledger {path}, got {line[:60]!r}. Restore it from a "
            "backup."
        ) from error
    if not honest:
        raise PrivacyError(
            f"Expected line {number} of the ledger {path} to continue the chain of hashes; it, or a "
            f"line before it, was edited, removed or swapped{_or_key(key)}. Restore the ledger from a backup."
        )
    return entry, claimed


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> str:
    """Say how the header of a ledger differs from that of this run."""
    keys = [key for key in new if old.get(key) != new[key]]
    steps = {which: _planned_steps(header) for which, header in (("old", old), ("new", new))}
    if "plan" in keys and None not in steps.values() and steps["old"] != steps["new"]:
        return (
            f"Expected the ledger {path} of the same run, but its plan changed: it was made for {steps['old']} steps, "
            f"now there are {steps['new']}. The noise was calibrated for {steps['old']}, so that more steps or epochs "
            f"would cost more than the budget. Resume with the old parameters ({steps['old']} steps), or begin a new "
            "run with a new ledger from the weights of this one: its ε is added to what was spent."
        )
    was, now = ({key: source.get(key) for key in keys} for source in (old, new))
    return (
        f"Expected the ledger {path} of the same run, but {' and '.join(keys)} changed: it was "
        f"{canonical(was)}, now {canonical(now)}. Resume with the old parameters, or start a new run with a new ledger."
    )


def _planned_steps(header: Mapping[str, Any]) -> int | None:
    """Count the releases of a plan; None where it does not say."""
    plan = header.get("plan")
    if not isinstance(plan, list) or not all(isinstance(phase, Mapping) for phase in plan):
        return None
    counts = [phase.get("count") for phase in plan]
    return sum(counts) if all(isinstance(count, int) for count in counts) else None


def lock(file: IO[bytes], path: Path) -> None:
    """Allow one writer at a time, within this process too: two would break the chain, or count half each.

    flock and not lockf: a POSIX lock belongs to the process, which may take it twice and loses it as soon as it closes
    the file anywhere, after reading it for example. Checked by: tests/attacks/test_ledger_lock.py

    Raises:
        PrivacyError: somebody else writes to it, or the file system has no locks.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PrivacyError(
            f"Expected the ledger {path} to be free, but another process, or another Privatizer or Ledger of this one, "
            "writes to it. Close that one first, or use another path."
        ) from error
    except OSError as error:
        raise PrivacyError(
            f"Expected to lock the ledger {path}, but the system says: {error.strerror or error}. Without a lock two "
            "writers could count half each. Keep the ledger on a file system with locks, such as a local disk."
        ) from error


def check_in_place(file: IO[bytes], path: Path) -> None:
    """Refuse a file that was replaced (`replace_content`) or removed between its opening and its lock.

    Raises:
        PrivacyError: lines written to it would be lost.
    """
    if sys.platform == "win32":
        return
    try:
        same = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        same = False
    if not same:
        raise PrivacyError(f"The ledger {path} was replaced while it was opened. Open it again.")


def replace_content(file: IO[bytes], path: Path, content: bytes) -> IO[bytes]:
    """Put a file with this content into the place of a locked one, in one step, and return it locked.

    Cutting the torn end off and then appending what it counts for would lose it to a kill in between.
    """
    part = path.with_name(f"{path.name}.part")
    fresh = open(part, "ab+", buffering=0)  # noqa: SIM115
    try:
        lock(fresh, part)
        disk().truncate(fresh)
        write_bytes(fresh, content)
        if sys.platform == "win32":  # which replaces no open file, and has no lock to lose
            fresh.close()
            file.close()
        disk().replace(part, path)
        sync_folder(path)
        if fresh.closed:
            fresh = open(path, "ab+", buffering=0)  # noqa: SIM115
    except BaseException:
        fresh.close()
        raise
    file.close()
    return fresh


def _or_key(key: bytes | None) -> str:
    return "" if key is None else f", or {KEY_VARIABLE} holds another secret"
