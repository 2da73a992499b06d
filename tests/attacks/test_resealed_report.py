"""A report with a better accuracy, sealed anew: without a key anybody can seal, so `verify` renders the page again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.report import check, write_report
from quietgrad.lab.report.check import check_report, verify_folder
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.statement.seals import seal
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resealed")
    train(load_config(write_config(folder), ["training.epochs=1"]), folder / "run")
    write_report([folder / "run"])
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy under another name, as an officer gets it."""
    return Path(shutil.copytree(finished, tmp_path / "received"))


def rewritten(run: Path, old: str, new: str) -> None:
    page = run / "report.html"
    assert old in page.read_text()
    page.write_text(page.read_text().replace(old, new))
    seal(page)


def test_an_officer_finds_a_changed_accuracy(run: Path) -> None:
    accuracy = f"{json.loads((run / 'results.json').read_text())['accuracy']:.1%}"
    rewritten(run, accuracy, "99.9%")
    assert verify(run).stands, "the seals hold: they were made anew"
    done = CliRunner().invoke(app, ["verify", str(run)])
    assert done.exit_code == 1
    assert "99.9%" in done.stdout
    assert accuracy in done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Audit: not made.", "Audit: passed."),
        ("Tuning is not stated.", ""),
        ("Not protected:", "Protected too:"),
        ("</article>", "<p>ISO certified.</p></article>"),
    ],
)
def test_other_words_are_found(run: Path, old: str, new: str) -> None:
    rewritten(run, old, new)
    assert not verify_folder(run).stands


def test_an_untouched_copy_stands_and_says_what_was_checked(run: Path) -> None:
    found = verify_folder(run)
    assert found.stands, found.said
    assert "rendered again: the same" in found.said


def test_figures_of_another_version_are_named_as_not_checked(run: Path) -> None:
    rewritten(run, "<svg", '<svg data-version="other"')
    found = verify_folder(run)
    assert found.stands, found.said
    assert "NOT checked" in found.said


def test_the_words_of_another_version_are_named_and_its_numbers_are_checked(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer quietgrad may say the same otherwise; whoever claims another version still cannot change a number."""
    monkeypatch.setattr(check, "__version__", "99.0")
    rewritten(run, "Not protected:", "Out of scope:")
    found = check_report(run)
    assert not found.problem
    assert "words were NOT checked (quietgrad" in found.said
    accuracy = f"{json.loads((run / 'results.json').read_text())['accuracy']:.1%}"
    rewritten(run, accuracy, "99.9%")
    assert "is not what the folder gives" in check_report(run).problem


def test_a_page_about_several_folders_is_checked_in_part(run: Path, finished: Path) -> None:
    write_report([run, finished])
    assert "other folders" in check_report(run).said
    rewritten(run, "Audit: not made.", "Audit: passed.")
    assert check_report(run).problem


def test_the_report_says_who_when_and_that_no_audit_was_made(run: Path) -> None:
    page = (run / "report.html").read_text()
    for said in (
        "About this run",
        "data owner",
        "Audit: not made.",
        "Tuning is not stated.",
        "weights, SHA-256",
    ):
        assert said in page
