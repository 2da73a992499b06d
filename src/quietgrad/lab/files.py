"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from quietgrad.accounting.disk import disk, make_folders, sync_folder
from quietgrad.lab.errors import LabError


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file in one step, on disk before the old one is gone."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            disk().write(file, content)
            file.flush()
            disk().sync(file.fileno())
        disk().replace(part, path)
        sync_folder(path)  # files that are written one after the other also survive a power cut in this order
    except OSError as error:
        disk().remove(part)
        raise LabError(
            f"Cannot write {path}: {error.strerror or error}. Free space or correct the folder, then go on with "
            "--resume or give another --out."
        ) from None


def make_folder(path: Path) -> None:
    try:
        make_folders(path)
    except (FileExistsError, NotADirectoryError):
        raise LabError(f"{path} is or lies under a file. Give a folder with --out.") from None
    except OSError as error:
        raise LabError(f"Cannot make the folder {path}: {error.strerror}. Give another --out.") from None


def to_json(content: Any) -> str:
    """Strict JSON, which has no infinity: ∞ (the ε of a run without noise) becomes "inf", what is no number null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False)


def number(value: float | str) -> float:
    """A number that `to_json` wrote."""
    return float(value)


def read_json(path: Path) -> Any:
    """The content of a file; one that says a thing twice is refused, since readers differ in which they believe."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_said_once)
    except (ValueError, OSError, RecursionError) as error:
        raise LabError(
            f"{path} cannot be read ({type(error).__name__}). Make the run or report it comes from again."
        ) from None


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
