"""A comparison lists methods that do not fit, and goes on with the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.compare.compare import REFUSED, _check_any_private, jobs, run_job
from quietgrad.lab.compare.comparison import Comparison, refusals
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import to_json
from quietgrad.lab.run.config import load_config
from tests.lab.tiny import write_config


def test_a_run_that_is_refused_before_it_begins_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    base = load_config(config)  # without public data, which gep needs
    (job,) = jobs(base, ["gep"], [2.0], 1, tmp_path / "out", None, baseline=False)
    sent: list[dict[str, object]] = []
    result = run_job(job, sent.append)
    assert set(result) == {REFUSED}
    assert sent == [{"done": True, **result}]
    assert not job.out.exists()
    with pytest.raises(LabError) as refused:
        _check_any_private([job], {0: result[REFUSED]})
    assert str(refused.value) == result[REFUSED]


def test_a_run_that_fails_after_it_began_is_no_question_of_fitting(tmp_path: Path) -> None:
    base = load_config(write_config(tmp_path), ["training.epochs=0.3"])
    (job,) = jobs(base, ["dp_sgd"], [2.0], 1, tmp_path / "out", None, baseline=False)
    run_job(job, lambda _: None)
    (job.out / "results.json").unlink()
    (job.out / "ledger.jsonl").write_text("no ledger\n")
    with pytest.raises(ValueError, match="ledger"):
        run_job(job, lambda _: None)


def test_what_does_not_fit_is_stored_and_shown(tmp_path: Path) -> None:
    made = Comparison((2.0,), 1e-5, 2.0, 2.0, (), (("gep", "The rank is too large. Lower it."),))
    (tmp_path / "results.json").write_text(to_json(made.as_dict()))
    assert Comparison.read(tmp_path) == made
    assert refusals(made) == ["gep does not fit: The rank is too large. Lower it."]


@pytest.mark.slow
def test_the_others_are_compared(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    arguments = ["compare", str(config), "--methods", "gep,dp_sgd", "--epsilons", "2", "--private-only"]
    changes = ["--set", "training.epochs=0.3"]
    done = CliRunner().invoke(app, [*arguments, *changes, "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert [row["method"] for row in said["results"]] == ["dp_sgd"]
    ((method, why),) = said["not_fitting"]
    assert method == "gep"
    assert "needs public data" in why
    assert "gep does not fit: " in (tmp_path / "out" / "report.html").read_text()
