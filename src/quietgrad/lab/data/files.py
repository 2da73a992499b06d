"""Reading files that may be gzipped, with one-line errors."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from quietgrad.lab.data.errors import DataError


def plain_or_gzipped(folder: Path, name: str) -> Path | None:
    """The file `name` or `name.gz` in the folder, None if there is neither."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def require(folder: Path, name: str) -> Path:
    """Like `plain_or_gzipped`, but a missing file is an error."""
    path = plain_or_gzipped(folder, name)
    if path is None:
        raise DataError(
            f"{folder} has neither {name} nor {name}.gz. Download the missing file into this folder."
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if its name ends in .gz; a file that changes meanwhile is refused."""
    try:
        content = _unchanged(path)
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}). Download it again.") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


def read_text(path: Path, *, encoding: str = "utf-8", remedy: str = "Download it again.") -> str:
    """Read a file of UTF-8 text, unzipped if its name ends in .gz."""
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}). {remedy}") from error


def _unchanged(path: Path) -> bytes:
    """Half of an old and half of a new file would be records that nobody has."""
    before = path.stat()
    content = path.read_bytes()
    after = path.stat()
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ino,
    ):
        raise DataError(f"{path} changed while it was read. Wait until it is complete and start again.")
    return content
