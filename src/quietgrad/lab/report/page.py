"""Puts articles on one page and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quietgrad.lab.errors import LabError
from quietgrad.lab.files import write_whole
from quietgrad.lab.report.comparison import comparison_article
from quietgrad.lab.report.html import document
from quietgrad.lab.report.run import run_article
from quietgrad.lab.report.style import STYLE
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.statement.seals import seal

FILE = "report.html"


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """One page about all the folders; `report.html` in the first one unless `out` says where."""
    page = out or folders[0] / FILE
    write_whole(page, render(folders).encode())
    seal(page)
    return page


def render(folders: Sequence[Path]) -> str:
    """The page about all the folders, as it would be written."""
    # No name of a folder: whoever gets a copy under another name renders the same page.
    return document("quietgrad: privacy report", STYLE, "".join(_article(folder) for folder in folders))


def _article(folder: Path) -> str:
    if RunFolder(folder).exists:
        return run_article(read_run(folder))
    if (folder / "results.json").exists():
        return comparison_article(folder)
    raise LabError(
        f"{folder} is neither a run nor a comparison. Give a folder that quietgrad train or compare made."
    )
