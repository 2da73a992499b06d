"""A researcher's own method on the command line: trained, compared, reported, and verified without running its code."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import quietgrad as qg
from quietgrad.lab.cli.app import app
from quietgrad.lab.errors import LabError
from quietgrad.lab.report.check import verify_folder
from quietgrad.lab.run import own_methods
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.own_methods import find_method
from quietgrad.lab.run.train import train
from tests.lab.test_privacy_schema import SCHEMA
from tests.lab.tiny import write_config

MODULE = """
from dataclasses import replace
import quietgrad as qg
from pathlib import Path
Path({marker!r}).touch()

def scaled(*, clip=1.0):
    return replace(qg.methods.dp_sgd(clip=clip / 2), name="scaled")

def wrong():
    return 3
"""
QUICK = ["--set", "training.epochs=0.5"]


@pytest.fixture
def researcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config and a module; its name differs, since modules stay imported."""
    name = f"research_{abs(hash(tmp_path)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(marker=str(tmp_path / "ran")))
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"{name}.py"


@pytest.mark.slow  # each run of a comparison is a process of its own
def test_an_own_method_in_compare_report_and_verify(researcher: Path) -> None:
    folder, name = researcher.parent, f"{researcher.stem}:scaled"
    asked = ["compare", "own.toml", "--methods", f"dp_sgd,{name}", "--private-only", "--out", "table", *QUICK]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    methods = [
        row["method"] for row in json.loads((folder / "table" / "results.json").read_text())["results"]
    ]
    assert name in methods
    assert CliRunner().invoke(app, ["report", "table"]).exit_code == 0
    checked = CliRunner().invoke(app, ["verify", "table"])
    assert checked.exit_code == 0, checked.output
    assert "code of its own" in checked.stdout


def test_verify_says_that_the_code_is_foreign_and_does_not_run_it(researcher: Path) -> None:
    name = f"{researcher.stem}:scaled"
    changes = [f"method.name={name}", "method.clip=0.5", "training.epochs=0.5"]
    train(load_config(Path("own.toml"), changes), Path("run"))
    statement = json.loads(Path("run/privacy.json").read_text())
    assert statement["foreign_code"]["method"] == name
    assert list(Draft202012Validator(SCHEMA).iter_errors(statement)) == []
    assert any("code of its own" in line for line in statement["assumptions"])
    researcher.unlink()
    Path("ran").unlink()
    found = verify_folder(Path("run"))
    assert found.stands, found.said
    assert f"NOT checked: The method {name}" in found.said
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{module}:scales", "did you mean 'scaled'"),
        ("no_such_module:scaled", "neither in this folder nor installed"),
        ("scaled", "one of your own: module:function"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(researcher: Path, name: str, said: str) -> None:
    with pytest.raises(LabError, match=said):
        find_method(name.format(module=researcher.stem))


def test_what_is_no_mechanism_is_refused(researcher: Path) -> None:
    config = load_config(Path("own.toml"), [f"method.name={researcher.stem}:wrong"])
    with pytest.raises(LabError, match="got int"):
        train(config, Path("run"))


def test_an_entry_point_of_a_package_is_a_method(researcher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(name="scaled", value=f"{researcher.stem}:scaled", group=own_methods.GROUP)
    monkeypatch.syspath_prepend(str(researcher.parent))
    monkeypatch.setattr(
        own_methods, "entry_points", lambda group: [entry] if group == own_methods.GROUP else []
    )
    made = find_method("scaled")()
    assert isinstance(made, qg.Mechanism)
    assert own_methods.source_hash("scaled") == hashlib.sha256(researcher.read_bytes()).hexdigest()
