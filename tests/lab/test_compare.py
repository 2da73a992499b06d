"""A comparison gives every method its own settings, goes on where it was stopped, and adds up what it cost."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.cli.app import app
from quietgrad.lab.compare.compare import folders, jobs, private_jobs, run_job
from quietgrad.lab.compare.comparison import Comparison, total_epsilon
from quietgrad.lab.run.config import load_config, parse_config
from quietgrad.lab.run.presets import presets, with_method
from tests.lab.tiny import contents, write_config

runner = CliRunner()


def silent(_: dict[str, Any]) -> None: ...


def test_every_method_has_a_preset_and_they_do_not_share_one_learning_rate() -> None:
    import quietgrad as qg

    assert set(presets()) == set(qg.methods.__all__)
    rates = {preset["training"]["lr"] for preset in presets().values()}
    assert len(rates) > 1


def test_a_method_takes_its_preset_and_the_configs_own_method_keeps_its_settings() -> None:
    base = parse_config({"method": {"name": "gep", "rank": 7}, "training": {"lr": 0.123}})
    assert with_method(base, "gep") == base
    other = with_method(base, "rgp")
    assert other.method.options == presets()["rgp"]["method"]
    assert other.training.lr == presets()["rgp"]["training"]["lr"]
    assert other.training.epochs == base.training.epochs


def test_warm_dp_sgd_is_dp_sgd_at_its_preset_with_the_public_labels() -> None:
    base = parse_config({"data": {"public": 20}})
    plain, warm = (with_method(base, name, 0.3) for name in ("dp_sgd", "dp_sgd_warm"))
    assert warm.data.public_labels
    assert warm.training.warm_start == "public"
    assert warm.training.lr == plain.training.lr == 0.25
    assert warm.method == plain.method


def test_all_presets_build_on_the_demo_model() -> None:
    from quietgrad.lab.run.preview import method_report
    from quietgrad.lab.run.setup import set_up

    config = parse_config({"data": {"private": 400, "test": 10}, "training": {"batch": 40, "epochs": 8}})
    setup = set_up(config)
    for name in presets():
        found = method_report(with_method(config, name).method, config.privacy, setup)
        assert found.problem == "", (name, found.problem)
        assert found.dimension > 0


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of two methods with two seeds."""
    folder = tmp_path_factory.mktemp("board")
    options = ["--methods", "dp_sgd,random_freeze", "--epsilons", "2", "--seeds", "2"]
    done = runner.invoke(
        app,
        [
            "compare",
            str(write_config(folder)),
            *options,
            "--set",
            "training.epochs=0.5",
            "--out",
            str(folder / "out"),
            "--json",
        ],
    )
    assert done.exit_code == 0, done.output
    (folder / "said.json").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_a_comparison_has_its_rows_ends_and_total(board: Path) -> None:
    said = json.loads((board / "said.json").read_text())
    stored = json.loads((board / "out" / "results.json").read_text())
    assert {key: said[key] for key in stored} == stored
    rows = {(row["method"], row["target"]): row for row in said["results"]}
    assert set(rows) == {
        ("dp_sgd", 2.0),
        ("random_freeze", 2.0),
        ("non-private", "inf"),
    }
    for (_, target), row in rows.items():
        assert len(row["runs"]) == 2
        assert row["seconds"] > 0
        assert row["memory_mb"] > 50
        assert row["std"] >= 0
        if target != "inf":
            assert row["epsilon"] <= target
    assert (board / "out" / "accuracy.png").stat().st_size > 10_000
    ledgers = [
        Ledger.read(board / "out" / name / "ledger.jsonl")
        for row in said["results"]
        if row["target"] != "inf"
        for name in row["runs"]
    ]
    everything = [phase for ledger in ledgers for phase in ledger.plan or ()]
    assert len(ledgers) == 4
    assert said["private_total_epsilon"] == pytest.approx(epsilon(everything, 1e-5))
    assert said["private_total_epsilon"] > 2.0
    assert said["total_epsilon"] == "inf"  # the non-private baseline saw the same records


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_and_leaves_finished_runs_alone(board: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(board / "out", out)
    kept = contents(out / "dp_sgd-eps2-seed0")
    shutil.rmtree(out / "random_freeze-eps2-seed1")
    (out / "results.json").unlink()
    (out / "dp_sgd-eps2-seed1" / "results.json").unlink()  # as if killed just before its end
    options = ["--methods", "dp_sgd,random_freeze", "--epsilons", "2", "--seeds", "2"]
    again = [
        "compare",
        str(board / "own.toml"),
        *options,
        "--set",
        "training.epochs=0.5",
        "--out",
        str(out),
        "--json",
    ]
    done = runner.invoke(app, again)
    assert done.exit_code == 0, done.output
    assert contents(out / "dp_sgd-eps2-seed0") == kept
    assert len(json.loads(done.stdout)["results"]) == 3
    assert Ledger.read(out / "dp_sgd-eps2-seed1" / "ledger.jsonl").count == 4
    refused = runner.invoke(app, [*again, "--set", "training.lr=0.7"])
    assert refused.exit_code == 2
    assert "another config" in refused.stderr


def test_a_finished_job_is_read_back_and_the_total_counts_whole_plans(tmp_path: Path) -> None:
    base = load_config(write_config(tmp_path), ["training.epochs=0.3"])
    todo = jobs(base, ["dp_sgd"], [1.0], 1, tmp_path / "out", None)
    assert [job.label for job in todo] == ["dp_sgd", "non-private"]
    first = [run_job(job, silent) for job in todo]
    before = contents(tmp_path / "out")
    again = [run_job(job, silent) for job in todo]
    assert again == first
    assert contents(tmp_path / "out") == before
    assert first[1]["epsilon"] == math.inf
    assert total_epsilon(folders(private_jobs(todo)), 1e-5) == pytest.approx(first[0]["epsilon"], rel=1e-6)
    assert total_epsilon(folders(todo), 1e-5) == math.inf


def test_a_comparison_survives_json(tmp_path: Path) -> None:
    from quietgrad.lab.compare.comparison import ComparisonRow
    from quietgrad.lab.files import to_json

    rows = (
        ComparisonRow("dp_sgd", 2.0, 0.8, 0.01, 1.99, 3.0, 100.0, 5.0, ("a", "b")),
        ComparisonRow("non-private", math.inf, 0.9, 0.0, math.inf, 3.0, 100.0, None, ("c",)),
    )
    made = Comparison((2.0,), 1e-5, math.inf, 2.4, rows)
    (tmp_path / "results.json").write_text(to_json(made.as_dict()))
    assert Comparison.read(tmp_path) == made
    assert made.as_dict()["epsilon"] == 2.0


def test_damaged_public_data_is_an_error_and_not_a_missing_row(tmp_path: Path) -> None:
    from quietgrad.lab.compare.baselines import public_only
    from quietgrad.lab.data import DataError

    base = load_config(write_config(tmp_path))
    assert public_only(base, 1, None) == []  # this task has no public data
    Path(base.data.name).write_bytes(b"no npz")
    with pytest.raises(DataError):
        public_only(base, 1, None)


def test_without_the_baseline_the_total_is_finite(tmp_path: Path) -> None:
    base = load_config(write_config(tmp_path), ["training.epochs=0.3"])
    todo = jobs(base, ["dp_sgd"], [1.0], 1, tmp_path / "out", None, baseline=False)
    assert [job.label for job in todo] == ["dp_sgd"]
    run_job(todo[0], silent)
    assert total_epsilon(folders(todo), 1e-5) <= 1.0
