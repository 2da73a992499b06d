"""Files beside the claim are rewritten: a report with another ε, better accuracies, another checkpoint, no model card.

`verify` looked at ledger, statement, weights and config only. People read the report and the accuracies.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quietgrad.accounting.chain import KEY_VARIABLE, digest
from quietgrad.lab.files import to_json
from quietgrad.lab.report import write_report
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.statement.seals import seal, sha256
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

Tampering = Callable[[Path, Path], object]


@pytest.fixture(scope="module", params=[None, "the officer's secret"], ids=["no key", "key"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, str | None]:
    """A run with report and audit, another one of the same config, and the key."""
    folder = tmp_path_factory.mktemp("rewritten")
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setenv(KEY_VARIABLE, request.param)
        config = load_config(write_config(folder), ["training.epochs=0.5"])
        for name in ("run", "twin"):
            train(config, folder / name)
            (folder / name / "audit.json").write_text(to_json({"attack": "none", "lower_bound": 0.7}))
            seal(folder / name / "audit.json")
            write_report([folder / name])
    return folder / "run", folder / "twin", request.param


def edited(name: str, old: str, new: str) -> Tampering:
    def edit(run: Path, _: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return edit


def changed(name: str, key: str, value: object) -> Tampering:
    def change(run: Path, _: Path) -> None:
        content = json.loads((run / name).read_text())
        assert content[key] != value
        (run / name).write_text(to_json({**content, key: value}))

    return change


def copied(name: str) -> Tampering:
    return lambda run, twin: shutil.copy(twin / name, run / name)


def missing(name: str) -> Tampering:
    return lambda run, _: (run / name).unlink()


def flipped(name: str) -> Tampering:
    def flip(run: Path, _: Path) -> None:
        content = bytearray((run / name).read_bytes())
        content[len(content) // 2] ^= 1
        (run / name).write_bytes(bytes(content))

    return flip


def report_and_seals(run: Path, twin: Path) -> None:
    for name in ("report.html", "seals.json"):
        shutil.copy(twin / name, run / name)


TAMPERINGS: dict[str, tuple[str, Tampering]] = {
    "a kinder report": ("report.html", edited("report.html", "ε", "half of ε")),
    "another run's report": ("report.html", copied("report.html")),
    "another run's report and seals": ("seals.json", report_and_seals),
    "no report": ("report.html", missing("report.html")),
    "no seals": ("report.html", missing("seals.json")),
    "seals of nothing": ("seals.json", changed("seals.json", "files", {})),
    "a better accuracy": ("results.json", changed("results.json", "accuracy", 0.999)),
    "a shorter time": ("results.json", changed("results.json", "seconds", 0.001)),
    "another curve": ("results.json", changed("results.json", "curve", [])),
    "another run's results": ("results.json", copied("results.json")),
    "a flipped bit of the checkpoint": ("checkpoint.pt", flipped("checkpoint.pt")),
    "another run's checkpoint": ("checkpoint.pt", copied("checkpoint.pt")),
    "another seed of the split": ("split.json", changed("split.json", "seed", 99)),
    "other data": ("split.json", changed("split.json", "data", "census")),
    "no split": ("split.json", missing("split.json")),
    "another run's name": ("run.json", copied("run.json")),
    "no name": ("run.json", missing("run.json")),
    "no model card": ("model_card.md", missing("model_card.md")),
    "a model card of another run": ("model_card.md", copied("model_card.md")),
    "an audit that found nothing": ("audit.json", changed("audit.json", "lower_bound", 0.0)),
    "no audit": ("audit.json", missing("audit.json")),
}


@pytest.fixture
def run(runs: tuple[Path, Path, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if runs[2]:
        monkeypatch.setenv(KEY_VARIABLE, runs[2])
    return Path(shutil.copytree(runs[0], tmp_path / "run"))


@pytest.mark.parametrize("change", TAMPERINGS)
def test_a_rewritten_file_is_found_and_named(
    runs: tuple[Path, Path, str | None], run: Path, change: str
) -> None:
    name, tamper = TAMPERINGS[change]
    tamper(run, runs[1])
    found = verify(run)
    assert not found.stands
    assert any(name in problem for problem in found.problems), found.problems


def test_the_runs_stand_as_they_were_written(runs: tuple[Path, Path, str | None], run: Path) -> None:
    for folder in (run, runs[1]):
        assert verify(folder).stands, verify(folder).said


def test_a_report_sealed_anew_falls_by_the_key(runs: tuple[Path, Path, str | None], run: Path) -> None:
    """Without a key anybody may seal, as the verdict says."""
    report = run / "report.html"
    report.write_text(report.read_text().replace("ε", "half of ε"))
    files = {**json.loads((run / "seals.json").read_text())["files"], report.name: sha256(report)}
    forged = digest(sha256(run / "privacy.json"), files, None)
    (run / "seals.json").write_text(to_json({"files": files, "seal": forged}))
    assert verify(run).stands == (runs[2] is None)


def test_making_a_report_again_seals_nothing_else(run: Path) -> None:
    changed("audit.json", "lower_bound", 0.0)(run, run)
    write_report([run])
    assert any("audit.json" in problem for problem in verify(run).problems)
    assert not any("report.html" in problem for problem in verify(run).problems)


def test_the_verdict_names_what_was_checked_and_what_is_not_there(run: Path) -> None:
    said = verify(run).said
    assert all(name in said for name in ("results", "split", "model card", "checkpoint.pt", "report.html"))
    (run / "checkpoint.pt").unlink()
    assert "checkpoint.pt is not there" in verify(run).said


def test_a_statement_without_hashes_of_files_is_not_praised_for_them(
    runs: tuple[Path, Path, str | None], run: Path
) -> None:
    """As runs of 0.2 have them; with a key nobody can make one of another statement."""
    statement = json.loads((run / "privacy.json").read_text())
    statement.pop("files")
    (run / "privacy.json").write_text(to_json(statement))
    found = verify(run)
    if runs[2]:
        assert not found.stands
    else:
        assert "results, split, checkpoint and report NOT checked" in found.said
