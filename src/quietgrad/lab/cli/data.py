"""`quietgrad data`: which data sets are found where, and how to get the others."""

from __future__ import annotations

import dataclasses

import typer
from rich.console import Console
from rich.table import Table

from quietgrad.lab.cli.options import DataDir, Json
from quietgrad.lab.data import find_datasets
from quietgrad.lab.data.catalogue import VARIABLE, search_path
from quietgrad.lab.files import to_json


def data(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Which data sets are found where, and how to get the others."""
    found = find_datasets(data_dir)
    if as_json:
        typer.echo(to_json([dataclasses.asdict(dataset) for dataset in found]))
        return
    table = Table("name", "what it is", "where")
    for dataset in found:
        missing = dataset.problem or f"not found; to get it: {dataset.how_to_get}"
        table.add_row(dataset.name, dataset.title, dataset.folder or missing)
    console = Console()
    console.print(table)
    folders = ", ".join(str(folder) for folder in search_path(data_dir))
    console.print(
        f"Looked for in {folders}. Another folder: --data-dir, or ${VARIABLE}.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        "Your own: a .npz file with x and y, or a folder with one sub-folder of images per class; "
        'write its path as data.name = "...".',
        highlight=False,
    )
