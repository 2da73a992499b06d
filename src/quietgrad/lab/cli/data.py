"""`quietgrad data`: which data sets are found where, and how to get the others."""

from __future__ import annotations

import dataclasses

import typer

from quietgrad.lab.cli.options import DataDir, Json


def data(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets that were found, and how to get the others."""
    from rich.console import Console
    from rich.table import Table

    from quietgrad.lab.data import find_datasets
    from quietgrad.lab.data.catalogue import VARIABLE, search_path
    from quietgrad.lab.files import to_json

    found = find_datasets(data_dir)
    if as_json:
        typer.echo(to_json([dataclasses.asdict(dataset) for dataset in found]))
        return
    table = Table("name", "what it is", "where")
    for dataset in found:
        table.add_row(dataset.name, dataset.title, dataset.folder or dataset.problem or "not found")
    console = Console()
    console.print(table)
    for dataset in found:
        if dataset.folder is None:  # whole lines: an address that a table cuts cannot be opened
            console.print(f"{dataset.name}: {dataset.how_to_get}", highlight=False, soft_wrap=True)
    folders = ", ".join(str(folder) for folder in search_path(data_dir))
    console.print(
        f"Looked for in {folders}. Another folder: --data-dir, or ${VARIABLE}.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        "Your own: a table (CSV, TSV, JSONL, Parquet; quietgrad columns FILE begins its config), a .npz file with "
        'x and y, or a folder with one sub-folder of images per class. Write its path as data.name = "...".',
        highlight=False,
        soft_wrap=True,
    )
