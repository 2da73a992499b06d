"""Seals of files that are written after a run has ended: its report, and what attacks on it found.

The statement holds the hashes of all files of a run, but a report may be made again at any time. So whoever writes one
writes its hash beside it. The hashes are chained to the statement as the lines of a ledger are, under the same key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path

from quietgrad.accounting.chain import digest, key_from_environment
from quietgrad.lab.files import read_json, to_json, write_whole
from quietgrad.lab.run.statement.statement import FILE as STATEMENT

FILE = "seals.json"
SEALED = ("report.html", "audit.json")


def seal(file: Path) -> None:
    """Write down the hash of a file in the folder of a finished run, or of a comparison."""
    folder = file.parent
    if file.name not in SEALED or not _anchor(folder).exists():
        return
    # Seals that do not hold are not taken over: that would make them hold.
    files = {**(_read(folder) or {}), file.name: sha256(file)}
    write_whole(folder / FILE, to_json({"files": files, "seal": _seal(folder, files)}).encode())


def is_sealed(folder: Path) -> bool:
    """Whether the folder has seals, which may be broken."""
    return (folder / FILE).exists()


def broken_seals(folder: Path) -> Iterator[str]:
    """Say which files are not those that were sealed."""
    files = _read(folder) if is_sealed(folder) else {}
    if files is None:
        yield f"{FILE} is not what was sealed"
        return
    for name in SEALED:
        if (folder / name).exists() and files.get(name) != sha256(folder / name):
            yield f"{name} is not the one that was sealed (make a report again with quietgrad report)"
    for name in sorted(files):
        if not (folder / name).exists():
            yield f"{name} is missing"


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _read(folder: Path) -> dict[str, str] | None:
    """Return the sealed hashes, None if there are none or their seal is broken."""
    if not is_sealed(folder):
        return None
    content = read_json(folder / FILE)
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        return None
    files = {str(name): str(value) for name, value in content["files"].items()}
    return files if hmac.compare_digest(str(content.get("seal")), _seal(folder, files)) else None


def _seal(folder: Path, files: dict[str, str]) -> str:
    return digest(sha256(_anchor(folder)), files, key_from_environment())


def _anchor(folder: Path) -> Path:
    """Return the file that speaks for the folder: a run's statement, a comparison's table."""
    if (folder / "config.toml").exists():
        return folder / STATEMENT
    return folder / "results.json"
