"""Everything that runs change on the disk, in one place, so that tests can break a run off at every change.

Ledgers and the lab change files through `disk` alone. `replace_disk` puts another `Disk` in its place, for tests in a
process of their own: one that dies before the 17th change, or after half of a write, or whose disk is full.
`python -m benchmarks.crash_points` does so at every change of a run.

Checked by: tests/lab/test_changes_of_files.py, tests/lab/test_crash_points.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO


class Disk:
    """Change files and folders; each method is one change, and a crash comes before or after it."""

    def write(self, file: IO[bytes], content: bytes) -> int:
        """Write to an open file, and return how many bytes were written."""
        return file.write(content)

    def truncate(self, file: IO[bytes]) -> None:
        """Cut an open file to nothing."""
        file.truncate(0)

    def sync(self, descriptor: int) -> None:
        """Wait until an open file or folder is on the disk."""
        os.fsync(descriptor)

    def replace(self, old: Path, new: Path) -> None:
        """Give a file or folder another name, in one step."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Delete a file, if it is there."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Delete an empty folder."""
        path.rmdir()

    def make_folder(self, path: Path) -> None:
        """Make a folder whose parent exists."""
        path.mkdir(exist_ok=True)


_disk = Disk()


def disk() -> Disk:
    """Return what changes files in this process."""
    return _disk


def replace_disk(other: Disk) -> None:
    """Let another object change files in this process from now on; for tests of crashes."""
    global _disk
    _disk = other


def sync_folder(path: Path) -> None:
    """Make a new file durable: it is only once its folder is."""
    if sys.platform == "win32":
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        disk().sync(folder)
    finally:
        os.close(folder)


def make_folders(path: Path) -> None:
    """Make a folder and all above it that are missing."""
    if not path.is_dir():
        make_folders(path.parent)
        disk().make_folder(path)


def remove_tree(path: Path) -> None:
    """Delete a folder and all that is in it."""
    for inside in sorted(path.iterdir()):
        if inside.is_dir() and not inside.is_symlink():
            remove_tree(inside)
        else:
            disk().remove(inside)
    disk().remove_folder(path)
