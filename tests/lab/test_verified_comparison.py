"""`quietgrad verify` on a comparison: every run, and the table that speaks of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.compare.compare import compare
from quietgrad.lab.compare.verification import verify_comparison
from quietgrad.lab.report import write_report
from quietgrad.lab.run.config import load_config
from tests.lab.tiny import write_config

pytestmark = pytest.mark.slow

runner = CliRunner()
PRIVATE = ("dp_sgd-eps2-seed0", "random_freeze-eps2-seed0")
BASELINE = "non_private-seed0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two private runs and the baseline."""
    folder = tmp_path_factory.mktemp("verified")
    base = load_config(write_config(folder), ["training.epochs=0.5"])
    compare(base, ["dp_sgd", "random_freeze"], [2.0], 1, folder / "board", lambda *_: None, workers=1)
    return folder / "board"


@pytest.fixture
def board(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "board")
    return tmp_path / "board"


def test_every_run_gets_its_line_and_all_of_them_the_last(board: Path) -> None:
    done = runner.invoke(app, ["verify", str(board)])
    assert done.exit_code == 0, done.output
    *each, last = done.stdout.strip().splitlines()
    assert [line.split(":")[0].split() for line in each] == [
        ["yes", PRIVATE[0]],
        ["no", "claim", BASELINE],
        ["yes", PRIVATE[1]],
    ]
    assert last.startswith("All 2 claims stand")
    assert last.endswith("Not private, and said to be so: 1 more.")


def test_the_same_for_machines(board: Path) -> None:
    done = runner.invoke(app, ["verify", str(board), "--json"])
    said = json.loads(done.stdout)
    assert (done.exit_code, said["stands"], said["problems"]) == (0, True, [])
    assert {name: (run["stands"], run["claims"]) for name, run in said["runs"].items()} == {
        **dict.fromkeys(PRIVATE, (True, True)),
        BASELINE: (False, False),
    }


def test_a_sealed_report_is_checked_and_another_one_is_said_not_to_be(board: Path) -> None:
    page = write_report([board])
    assert verify_comparison(board).stands
    page.write_text(page.read_text().replace("ε", "half of ε"))
    found = verify_comparison(board)
    assert not found.stands
    assert "report.html" in found.said
    (board / "seals.json").unlink()
    assert verify_comparison(board).said.endswith("report.html was NOT checked: it has no seal.")


def table(board: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    stored = json.loads((board / "results.json").read_text())
    change(stored)
    (board / "results.json").write_text(json.dumps(stored))


def row(stored: dict[str, Any], method: str) -> dict[str, Any]:
    return next(found for found in stored["results"] if found["method"] == method)


def dp_sgd(board: Path, **changes: Any) -> None:
    table(board, lambda stored: row(stored, "dp_sgd").update(changes))


def invented(name: str) -> dict[str, Any]:
    numbers = {"accuracy": 0.99, "std": 0.0, "epsilon": 0.1, "seconds": 1.0, "memory_mb": 1.0}
    return {"method": name, "target": 0.1, **numbers, "noise_to_signal": None, "runs": []}


TAMPERED: dict[str, Callable[[Path], Any]] = {
    "a smaller ε in a run's statement": lambda board: _edit_statement(board / PRIVATE[1]),
    "a run that is gone": lambda board: shutil.rmtree(board / PRIVATE[0]),
    "a run that nobody counts": lambda board: shutil.copytree(board / PRIVATE[0], board / "one_more"),
    "a smaller ε of a row": lambda board: dp_sgd(board, epsilon=0.5),
    "a smaller target of a row": lambda board: dp_sgd(board, target=0.5),
    "a better accuracy of a row": lambda board: dp_sgd(board, accuracy=1.0),
    "a smaller total": lambda board: table(board, lambda stored: stored.update(private_total_epsilon=2.0)),
    "a finite total of everything": lambda board: table(
        board, lambda stored: stored.update(total_epsilon=2.9)
    ),
    "another δ": lambda board: table(board, lambda stored: stored.update(delta=1e-2)),
    "a row without runs": lambda board: table(
        board, lambda stored: stored["results"].append(invented("wonder"))
    ),
    "a baseline that is left out": lambda board: table(
        board, lambda stored: stored["results"].remove(row(stored, "non-private"))
    ),
    "a run that stands in two rows": lambda board: table(
        board, lambda stored: stored["results"].append(dict(row(stored, "dp_sgd")))
    ),
    "a table that is none": lambda board: (board / "results.json").write_text("[]"),
}


def _edit_statement(run: Path) -> None:
    statement = json.loads((run / "privacy.json").read_text())
    statement["claim"]["epsilon"] = 0.5
    (run / "privacy.json").write_text(json.dumps(statement))


@pytest.mark.parametrize("change", TAMPERED)
def test_a_tampered_comparison_is_not_believed(board: Path, change: str) -> None:
    assert verify_comparison(board).stands
    TAMPERED[change](board)
    done = runner.invoke(app, ["verify", str(board)])
    assert done.exit_code == 1, done.output
    assert done.stdout.splitlines()[-1].startswith("The claims do NOT all stand: ")


def test_only_the_tampered_run_is_answered_no(board: Path) -> None:
    _edit_statement(board / PRIVATE[1])
    found = verify_comparison(board)
    assert (found.fallen, found.problems) == ([PRIVATE[1]], ())
    assert found.said.startswith(f"The claims do NOT all stand: {PRIVATE[1]}: ")


@pytest.mark.parametrize("content", [None, "results.json"])
def test_a_folder_without_runs_claims_nothing(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / content).write_text(
            '{"results": [], "epsilons": [], "delta": 1e-5, "total_epsilon": 0.0, "private_total_epsilon": 0.0}'
        )
    done = runner.invoke(app, ["verify", str(tmp_path)])
    assert done.exit_code == 1
    assert "NOT" in done.stdout
