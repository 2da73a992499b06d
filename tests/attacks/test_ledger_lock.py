"""A lock that is lost: a process that writes the ledger and reads it once (a progress bar) lets go of a POSIX lock.

Another process then opens the ledger, writes too, and neither counts the other's releases.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
