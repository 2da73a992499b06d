"""What surrounds the code says the same as the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from scripts.imports import import_graph, modules
from scripts.package_map import OUT, drawing

import quietgrad as qg
from quietgrad.lab.run.config import load_config
from tests.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(work|root|tmp|home)/\w")


def test_the_package_map_is_current() -> None:
    assert OUT.read_text() == drawing(import_graph()), "run `python -m scripts.package_map`"


def test_the_version_is_written_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", qg.__version__)
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {qg.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == qg.__version__


def test_every_version_in_the_changelog_has_its_tag() -> None:
    versions = re.findall(
        r"^## \[(.*?)\].*\n\n(.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE
    )
    assert len(versions) >= 2
    assert [tag for _, tag in versions] == [f"Tag: `v{number}`." for number, _ in versions]


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, file in modules().items() if not ast.get_docstring(ast.parse(file.read_text()))]
    assert silent == []


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return done.stdout.splitlines()


def test_nothing_names_a_place_of_one_machine() -> None:
    texts = [
        ROOT / name
        for name in tracked()
        if name.endswith((".py", ".md", ".toml", ".yml", ".yaml", ".cff", ".txt"))
    ]
    assert len(texts) > 200
    found = [file for file in texts if file.exists() and OF_ONE_MACHINE.search(file.read_text())]
    assert [str(file.relative_to(ROOT)) for file in found if file.name != "test_project.py"] == []


def test_leaderboard_entries_are_the_measured_ones() -> None:
    board = tomllib.loads((ROOT / "leaderboards" / "entries.toml").read_text())
    measured = (ROOT / "docs" / "results" / "linear_probe.md").read_text()
    for entry in board["entry"]:
        config = load_config(ROOT / "configs" / f"{entry['config']}.toml")
        assert config.privacy.epsilon == entry["epsilon"]
        assert config.privacy.delta == board["protocol"]["delta"]
        assert entry["command"].startswith(f"quietgrad compare {entry['config']} --methods quiet ")
        cells = f"{entry['epsilon']:g} | {entry['accuracy']:.2f} ± {entry['std']:.2f} |"
        assert f"| `{entry['config']}` | {entry['public_data']} | {cells}" in measured
