"""The tutorials run from the first cell to the last, with the shorter settings that their cells carry."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.ipynb"))


def shortened(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Cells that say how to be short are; the others stay as they are."""
    short = [cell for cell in notebook.cells if "short" in cell.metadata]
    assert len(short) == 1
    short[0].source = short[0].metadata["short"]
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_tutorial_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = shortened(nbformat.read(file, as_version=4))
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    drawn = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert "image/png" in drawn[-1]["data"]


def test_there_are_tutorials() -> None:
    assert {file.stem for file in NOTEBOOKS} >= {
        "auditing_a_model",
        "fine_tuning",
        "how_much_epsilon",
        "private_training",
        "which_method",
    }
