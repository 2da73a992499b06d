"""The page of all commands, made from the command line itself.

python -m scripts.commands_page     writes docs/commands.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.main

from quietgrad.lab.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Commands

After this page you know what each command of `quietgrad` does, and its options. `quietgrad train --help` says the
same. `quietgrad --install-completion` teaches your shell the names.

Exit codes: 0 if all went well, 1 if a claim does not stand (`verify`, `audit`), 2 after an error, 130 after Ctrl-C.
This page is made by `python -m scripts.commands_page`; a test keeps it current.

Many commands share these options:

| option | meaning |
|---|---|
"""
SHARED = ("--set", "--data-dir", "--json", "--debug")
"""Options that are described once, at the top."""


def page() -> str:
    """The whole page."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shared = {
        option: row
        for command in commands.values()
        for option, row in _options(command)
        if _is_shared(option)
    }
    parts = [HEAD + "\n".join(shared[option] for option in SHARED)]
    for panel, group in groupby(commands.items(), key=lambda item: item[1].rich_help_panel):
        parts.append(f"## {panel}")
        parts += [_section(name, command) for name, command in group]
    return "\n\n".join(parts) + "\n"


def _section(name: str, command: Any) -> str:
    said = re.sub(r"(--[\w-]+)", r"`\1`", " ".join((command.help or "").split()))
    arguments = " ".join(_argument(each) for each in command.params if each.param_type_name == "argument")
    rows = [row for option, row in _options(command) if not _is_shared(option)]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join(
        [f"### {name}", "", f"`quietgrad {name} {arguments}`".replace(" `", "`"), "", said, "", *table]
    ).rstrip()


def _argument(argument: Any) -> str:
    name = f"{argument.metavar}{'...' if argument.nargs == -1 else ''}"
    return name if argument.required else f"[{name}]"


def _options(command: Any) -> Iterator[tuple[str, str]]:
    """The first name of each option, and its row."""
    for option in command.params:
        if option.param_type_name == "option" and option.name != "help":
            names = ", ".join(f"`{name}`" for name in option.opts)
            yield option.opts[0], f"| {names} | {_meaning(option)} |"


def _meaning(option: Any) -> str:
    said = re.sub(r"(--[\w-]+)", r"`\1`", option.help or "")
    default = option.default
    if option.required:
        return f"{said} Required."
    if not default or callable(default):
        return said
    return f"{said} Default: `{default}`."


def _is_shared(option: str) -> bool:
    return option in SHARED


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
