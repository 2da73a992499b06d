"""Every `quietgrad` command on every page exists with its options and configs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from quietgrad.lab.cli.app import app
from quietgrad.lab.run.shipped_configs import shipped_configs
from tests.pages import PAGES, commands, title

GROUP = get_command(app)
assert isinstance(GROUP, typer.core.TyperGroup)
WITH_CONFIG = {"train", "compare", "explain", "federated", "tune"}


def words_of(page: Path) -> list[list[str]]:
    """The words of each command behind `quietgrad`."""
    lines = commands(page, "quietgrad ", ".venv/bin/quietgrad ")
    return [shlex.split(line)[1:] for line in lines]


WRITTEN = {f"{title(page)}: {' '.join(words)}": words for page in PAGES for words in words_of(page)}


def test_pages_have_commands() -> None:
    assert len(WRITTEN) > 100


@pytest.mark.parametrize("written", sorted(WRITTEN))
def test_the_command_exists_with_its_options(written: str) -> None:
    name, *rest = WRITTEN[written]
    if name.startswith("-"):
        return
    assert isinstance(GROUP, typer.core.TyperGroup)
    command = GROUP.commands.get(name)
    assert command is not None, name
    known = {option for param in command.params for option in param.opts} | {"--help"}
    assert {word.split("=")[0] for word in rest if word.startswith("--")} <= known
    if name in WITH_CONFIG and rest and "_eps" in rest[0]:
        assert Path(rest[0]).stem in shipped_configs(), rest[0]
