"""What surrounds a run: every key is documented, plans agree, folders are named, a finished run shows its result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scripts import commands_page
from scripts.config_page import PAGE, described, page
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.run import preview
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.presets import presets
from tests.lab.tiny import contents, write_config
from tests.pages import ROOT

runner = CliRunner()


def test_the_page_of_config_keys_is_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m scripts.config_page`"


def test_the_page_of_commands_is_current() -> None:
    text = commands_page.PAGE.read_text()
    assert text == commands_page.page(), "run `python -m scripts.commands_page`"
    assert {"train", "verify", "ledger", "export"} < set(re.findall(r"^### (\w+)$", text, flags=re.MULTILINE))


def test_every_key_says_what_it_is() -> None:
    keys = [
        (section, key, field.description)
        for section, owner in Config.model_fields.items()
        for key, field in getattr(owner.annotation, "model_fields", {}).items()
    ]
    assert len(keys) > 30
    assert [(section, key) for section, key, said in keys if not said] == []
    assert not re.search(r"\| +\|$", PAGE.read_text(), flags=re.MULTILINE), "an option without a description"


def test_descriptions_are_read_off_docstrings() -> None:
    said = described(
        "One line.\n\nArgs:\n    a, b: two\n        lines.\n    c: one.\n\nReturns:\n    d: nothing."
    )
    assert said == {"a": "two lines.", "b": "two lines.", "c": "one."}


def test_data_names_the_folders_it_looks_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = runner.invoke(app, ["data", "--data-dir", str(tmp_path)]).output
    assert f"Looked for in {tmp_path}, {tmp_path / 'cache' / 'quietgrad'}" in shown.replace("\n", "")
    assert "$QUIETGRAD_DATA" in shown


def test_resuming_a_finished_run_shows_its_result_and_spends_nothing(tmp_path: Path) -> None:
    arguments = [
        "train",
        str(write_config(tmp_path)),
        "--set",
        "training.epochs=0.5",
        "--out",
        str(tmp_path / "run"),
    ]
    first = runner.invoke(app, [*arguments, "--json"])
    assert first.exit_code == 0, first.output
    kept = contents(tmp_path / "run")["ledger.jsonl"]
    again = runner.invoke(app, [*arguments, "--resume", "--json"])
    assert again.exit_code == 0, again.output
    for key in ("accuracy", "epsilon", "steps"):
        assert json.loads(again.stdout)[key] == json.loads(first.stdout)[key]
    assert contents(tmp_path / "run")["ledger.jsonl"] == kept


def test_explain_and_budget_tell_the_same_plan_for_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preview, "presets", lambda: {"dp_sgd": presets()["dp_sgd"]})  # others take their time
    text = (ROOT / "docs" / "quickstart.md").read_text()
    (config,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (asked,) = re.findall(r"^quietgrad (budget .*)$", text, flags=re.MULTILINE)
    (tmp_path / "patients.toml").write_text(config)
    (count,) = re.findall(r"With ([\d,]+) records", text)
    records = int(count.replace(",", ""))
    rng = np.random.default_rng(0)
    np.savez("patients.npz", x=rng.normal(size=(records, 3)).astype(np.float32), y=np.arange(records) % 2)
    explained = json.loads(runner.invoke(app, ["explain", "patients.toml", "--json"]).stdout)
    budget = json.loads(runner.invoke(app, [*asked.split(), "--json"]).stdout)
    assert explained["steps"] == budget["steps"]
    (method,) = [method for method in explained["methods"] if method["method"] == "dp_sgd"]
    assert method["noise_multiplier"] == pytest.approx(budget["noise_multiplier"], rel=1e-6)
    assert explained["epsilon"] == pytest.approx(budget["epsilon"], rel=1e-3)
