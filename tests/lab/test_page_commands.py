"""Every `quietgrad` command on every page exists with its options and configs; those that train nothing are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.run.shipped_configs import shipped_configs
from tests.pages import PAGES

GROUP = get_command(app)
assert isinstance(GROUP, typer.core.TyperGroup)
QUICK = {"budget", "configs"}
"""Commands that read no data and train nothing."""
WITH_CONFIG = {"train", "compare", "explain", "federated", "tune"}


def commands(page: Path) -> list[list[str]]:
    """Command lines in code blocks and in inline code, without comments and prompts."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(
        re.findall(r"^```(?:console|bash|sh|text)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    )
    lines = [line.removeprefix("$ ") for line in blocks.replace("\\\n", " ").splitlines()]
    found = [line.split("  #")[0] for line in lines if line.startswith("quietgrad ")]
    found += re.findall(r"`(quietgrad [^`]+)`", text)
    return [shlex.split(line)[1:] for line in found if "…" not in line]


WRITTEN = {f"{page.name}: {' '.join(words)}": words for page in PAGES for words in commands(page) if words}


def test_pages_have_commands() -> None:
    assert len(WRITTEN) > 60


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


@pytest.mark.parametrize(
    "written", sorted(key for key, words in WRITTEN.items() if words[0] in QUICK and len(words) > 1)
)
def test_a_quick_command_runs(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if written.startswith("CHANGELOG") or re.search(r"\b[A-Z]{4,}\b", written.partition(": ")[2]):
        return  # names of options, or a placeholder
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, WRITTEN[written])
    assert done.exit_code == 0, done.output
