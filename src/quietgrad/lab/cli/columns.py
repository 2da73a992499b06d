"""`quietgrad columns`: the beginning of a config for a table, from its header alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Json

HEAD = """\
# {source}
# State what you know without looking at the rows: looking at values is not free. Bounds or categories that were
# read off the rows tell about them, and ε does not count that.
[data]
name = {name}
label = "?"              # the column to predict; state its classes below
# test = 1000            # rows to measure on, which ε does not protect; 0 for none

[columns]
# a number: [lowest, highest]            categories: ["a", "b", "c"]          a truth value: "boolean"
# a date: [2015-01-01, 2024-12-31]       free text or an identifier: "skip", as for columns that are not named
"""
TAIL = """
[privacy]
epsilon = 3.0
delta = 1e-6             # well below 1 / rows
"""
LEFT_OUT = re.compile(
    r"(^|[_\s.-])(id|uuid|key|name|surname|email|mail|phone|address|street|notes?|comments?|text|description)$",
    re.I,
)
"""Names that identifiers and free texts usually have."""


def columns(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV, TSV, JSONL or Parquet file.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Write the TOML here instead of printing it.")] = None,
    as_json: Json = False,
) -> None:
    """Begin a config for a table from its header; no row is read."""
    from quietgrad.lab.data.table_file import read_header
    from quietgrad.lab.files import to_json, write_whole

    names = read_header(file)
    _refuse_twice(file, names)
    skeleton = _skeleton(file, names)
    if out is not None:
        if out.exists():
            raise ValueError(f"{out} exists already. Give another --out.")
        write_whole(out, skeleton.encode())
    if as_json:
        typer.echo(to_json({"file": str(file), "columns": names, "toml": skeleton}))
    elif out is None:
        typer.echo(skeleton, nl=False)
    else:
        typer.echo(
            f"{len(names)} columns are in {out}: state what is known of them, without looking at values."
        )


def _skeleton(file: Path, names: list[str]) -> str:
    from quietgrad.lab.data.table_file import is_json_lines
    from quietgrad.tables.kinds import UNSTATED

    source = f"From the header of {file.name} alone; no value was read."
    if is_json_lines(file):
        source = f"From the names in the first line of {file.name}, which has no header; no value was used."
    lines = [
        f"{_key(name)} = {_quoted('skip' if LEFT_OUT.search(name) else UNSTATED)}" for name in names if name
    ]
    return HEAD.format(source=source, name=_quoted(str(file))) + "\n".join(lines) + "\n" + TAIL


def _refuse_twice(file: Path, names: list[str]) -> None:
    """Refuse a header that TOML could not hold."""
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{file} has {names.count(twice)} columns {twice!r}. Rename all but one of them in its header."
        )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # strings of JSON are strings of TOML
