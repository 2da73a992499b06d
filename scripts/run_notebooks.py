"""Executes the tutorials in place, so that pages show what their cells print and draw.

python -m scripts.run_notebooks [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"


def execute(file: Path) -> None:
    """Run all cells with their full settings, in a folder of their own."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=3000, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    for cell in notebook.cells:  # times of execution would change with every run
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, file)


if __name__ == "__main__":
    for name in sys.argv[1:] or [file.stem for file in sorted(FOLDER.glob("*.ipynb"))]:
        execute(FOLDER / f"{name}.ipynb")
        print(name, flush=True)
