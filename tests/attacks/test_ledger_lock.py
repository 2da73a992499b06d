"""A lock that is lost: a process that writes the ledger and reads it once (a progress bar) lets go of a POSIX lock.

Another process then opens the ledger, writes too, and neither counts the other's releases.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quietgrad.accounting import Ledger

OPEN = """
import sys
from quietgrad.accounting import Ledger
for path in sys.argv[1:]:
    try:
        Ledger(path)
        print("opened")
    except ValueError:
        print("refused")
"""


def opened_elsewhere(paths: list[Path]) -> list[bool]:
    """Which of the ledgers another process may write to."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *map(str, paths)], capture_output=True, text=True, check=True
    )
    return [line == "opened" for line in done.stdout.split()]


READS: dict[str, Callable[[Path], object]] = {
    "nothing": str,
    "Ledger.read": Ledger.read,
    "read_bytes": Path.read_bytes,
}


def test_the_lock_outlives_a_reader_of_the_same_process(tmp_path: Path) -> None:
    """On 0.1: lost after either way of reading; a closed ledger is free, of course."""
    paths = [tmp_path / name for name in READS]
    ledgers = [Ledger(path) for path in paths]
    for reading, path in zip(READS.values(), paths, strict=True):
        reading(path)
    closed = Ledger(tmp_path / "closed")
    closed.close()
    opened = opened_elsewhere([*paths, tmp_path / "closed"])
    assert dict(zip([*READS, "closed"], opened, strict=True)) == {
        "nothing": False,
        "Ledger.read": False,
        "read_bytes": False,
        "closed": True,
    }
    assert len(ledgers) == len(READS)


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES])
def test_a_file_system_without_locks_is_refused_for_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """On 0.2: "another process writes to it", whatever the system said."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ValueError, match=os.strerror(number)) as raised:
        Ledger(tmp_path / "ledger.jsonl")
    assert "another process" not in str(raised.value)
    assert "local disk" in str(raised.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_file_that_was_replaced_before_its_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repaired ledger is another file of that name; whoever opened the old one would write to nowhere."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path).close()

    def replaced(*_: object) -> None:
        (tmp_path / "new").write_bytes(path.read_bytes())
        os.replace(tmp_path / "new", path)

    monkeypatch.setattr("fcntl.flock", replaced)
    with pytest.raises(ValueError, match="replaced"):
        Ledger(path)
