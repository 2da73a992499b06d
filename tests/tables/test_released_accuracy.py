"""Without test rows accuracy is a release of its own: in the plan, in the ledger, with noise, or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quietgrad as qg
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._release.releaser import AccountedDraw
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.run.released_metrics import _errors, class_metrics, error_metrics
from tests.tables.patients import CONFIG, patients, write_config, write_csv
from tests.tables.test_numbers_and_users import NUMBER, stays
from tests.tables.test_table_runs import call, refused

ASKED = CONFIG.replace("test = 60", "test = 0").replace("delta = 1e-3", "delta = 1e-3\naccuracy = 0.05")
Sums = list[tuple[int, float, float]]


@pytest.fixture
def last_sums(monkeypatch: pytest.MonkeyPatch) -> Sums:
    """(entries, norm of the sum, sensitivity) of each release; only the test sees sums."""
    found: Sums = []
    release = AccountedDraw.release

    def recorded(self: AccountedDraw, total: ClippedSum, *, std: float) -> Released:
        sums = np.concatenate([block.double().numpy().ravel() for block in total.blocks.values()])
        found.append((len(sums), float(np.linalg.norm(sums)), total.sensitivity))
        return release(self, total, std=std)

    monkeypatch.setattr(AccountedDraw, "release", recorded)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    config = write_config(folder, write_csv(folder / "patients.csv", patients(600)), ASKED)
    printed = call("train", config, "--out", folder / "run")
    assert "600 rows: all private, none for testing" in printed
    assert "on the private rows (largest class" in printed
    assert "released within ε" in printed
    return folder / "run"


def test_it_is_near_the_truth_and_within_the_plan(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    metrics = results["metrics"]
    model, records = qg.load(str(run)), patients(600)
    said = zip(model.predict(records), records, strict=True)
    truth = np.mean([answer == record["readmitted"] for answer, record in said])
    assert abs(metrics["accuracy"] - truth) < 6 * metrics["noise"]
    assert 0.001 < metrics["noise"] < 0.05
    assert metrics["auc"] is None
    ledger = Ledger.read(run / "ledger.jsonl")
    assert list(ledger.description["after"]) == ["accuracy"]
    assert ledger.plan is not None
    assert ledger.count == sum(phase.count for phase in ledger.plan)
    assert results["epsilon"] == pytest.approx(8.0, abs=1e-2)
    assert results["covered"]
    assert "released within ε" in (run / "report.html").read_text()


def test_a_run_is_verified_and_resumed_without_another_release(run: Path) -> None:
    before = (run / "ledger.jsonl").read_bytes()
    results = json.loads((run / "results.json").read_text())
    assert "The claim stands" in call("verify", run)
    call("train", run.parent / "patients.toml", "--out", run, "--resume")
    assert (run / "ledger.jsonl").read_bytes() == before
    assert json.loads((run / "results.json").read_text())["metrics"] == results["metrics"]
    assert "accuracy" in call("explain", run.parent / "patients.toml")
    statement = json.loads((run / "privacy.json").read_text())
    assert not any("Test accuracy" in line for line in statement["not_covered"])


def test_a_release_that_was_lost_is_not_made_again(run: Path, tmp_path: Path) -> None:
    """The ledger has its line and the folder does not have it: killed in between."""
    import shutil

    from quietgrad.lab.run.config import load_config
    from quietgrad.lab.run.folder import RunFolder
    from quietgrad.lab.run.train import train

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "results.json").unlink()
    folder = RunFolder(copy)
    kept = folder.load("statistics.pt")
    assert kept is not None
    folder.save("statistics.pt", {name: value for name, value in kept.items() if name != "accuracy"})
    with pytest.warns(UserWarning, match="released the statistic 'accuracy'"):
        outcome = train(load_config(copy / "config.toml"), copy, resume=True)
    assert outcome.metrics == {}
    assert np.isnan(outcome.accuracy)
    assert (copy / "ledger.jsonl").read_bytes() == (run / "ledger.jsonl").read_bytes()


@pytest.mark.parametrize("kind", ["record", "user", "number"])
def test_law_2_one_record_or_user_moves_the_counts_by_their_sensitivity(
    kind: str, tmp_path: Path, last_sums: Sums
) -> None:
    """Nobody but one has a label: all others count nowhere, so the sum is what that one moves."""
    mine = 6 if kind == "user" else 1
    records: list[dict[str, Any]] = [{**record, "readmitted": "", "days": ""} for record in stays(60)]
    for record in records[:mine]:
        record.update(readmitted="yes", days=40, patient_id="P0")
    for place, record in enumerate(records[mine:]):
        record["patient_id"] = f"Q{place}"
    number = NUMBER.replace("test = 60", "test = 0").replace("1e-3", "1e-3\naccuracy = 0.05")
    users = ASKED.replace("test = 0", 'test = 0\nunit = "patient_id"\nmost_records = 6')
    text = {"record": ASKED, "user": users, "number": number}[kind]
    config = write_config(tmp_path, write_csv(tmp_path / "one.csv", records), text)
    call("train", config, "--out", tmp_path / "run")
    entries, norm, sensitivity = last_sums[-1]
    assert entries == (5 if kind == "number" else 4)
    assert 0.5 * sensitivity < norm <= sensitivity
    if kind == "user":  # the planted bug, rows of a user counted one by one, would be above it
        assert mine * norm > sensitivity


@pytest.mark.parametrize(
    ("old", "new"),
    [("test = 0", "test = 60"), ("[privacy]", '[method]\nname = "dp_sgd"\n[privacy]')],
)
def test_where_there_are_test_rows_it_is_refused(tmp_path: Path, old: str, new: str) -> None:
    config = write_config(
        tmp_path, write_csv(tmp_path / "patients.csv", patients(60)), ASKED.replace(old, new, 1)
    )
    assert "privacy.accuracy is for data.test = 0" in refused("train", config, "--out", tmp_path / "run")


def test_metrics_follow_from_the_counts() -> None:
    counts = torch.tensor([[0.5, 0.1], [0.1, 0.2]], dtype=torch.float64)
    found = class_metrics(counts, 1e-4, 1000)
    assert found.accuracy == pytest.approx(0.7 / 0.9)
    assert found.majority == pytest.approx(0.6 / 0.9)
    assert found.balanced_accuracy == pytest.approx((5 / 6 + 2 / 3) / 2)
    assert found.predicted == 2
    one = class_metrics(torch.tensor([[0.9, 0.0], [0.1, 0.0]], dtype=torch.float64), 1e-4, 1000)
    assert one.predicted == 1
    assert one.balanced_accuracy == pytest.approx(0.5)
    # Nothing but noise: numbers stay in range.
    lost = class_metrics(torch.tensor([[-0.1, 0.05], [0.02, -0.3]], dtype=torch.float64), 0.1, 1000)
    assert 0 <= lost.accuracy <= 1
    truth, said = torch.tensor([-1.0, 0.0, 1.0, torch.nan]), torch.tensor([-1.0, 0.5, 7.0, 3.0])
    rows = _errors(said, truth)
    assert float(rows.norm(dim=1).max()) <= 5**0.5
    numbers = error_metrics(rows.double().mean(0), 1e-6, 4, (0.0, 40.0))
    assert numbers.r2 == pytest.approx(1 - 0.25 / 2)
    assert numbers.mae == pytest.approx(10 / 3)
