"""A queue of entries: what runs when, what a stop or a kill leaves, and that a restart counts right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.errors import LabError
from quietgrad.lab.papers.experiment import Experiment, Place
from quietgrad.lab.papers.finding import Finding, Scale
from quietgrad.lab.papers.queue import Queue, QueueItem, items_of
from quietgrad.lab.papers.registry import EXPERIMENTS
from quietgrad.lab.run.interrupt import Stopped
from tests.papers.tiny_entries import STEPS

RESULT = {"finding": {"verdict": "holds"}, "seconds": 1.0}
NAMES = ("gip.table5", "gip.figure4b", "gip.figure4d")


@dataclass(frozen=True, kw_only=True)
class Fake(Experiment):
    """An entry that no process here runs; the queue asks it what it shares and whether it can be interrupted."""

    shared: frozenset[str] = frozenset()
    can_resume: bool = True

    @property
    def scales(self) -> tuple[Scale, ...]:
        return ("quick",)

    @property
    def resumable(self) -> bool:
        return self.can_resume

    def trainings(self, scale: Scale) -> frozenset[str]:
        return self.shared

    def seconds(self, scale: Scale, place: Place) -> float:
        return 1.0

    def run(self, scale: Scale, place: Place) -> Finding:
        raise NotImplementedError


@dataclass
class Scripts:
    """Short programs in the place of trainings: each says what an item's processes do, one after the other."""

    folder: Path
    of: dict[str, list[str]]
    started: list[str] = field(default_factory=list)

    def __call__(self, item: QueueItem, place: Place) -> list[str]:
        name = f"{item.paper}.{item.entry}"
        self.started.append(name)
        script = self.of[name].pop(0) if len(self.of[name]) > 1 else self.of[name][0]
        return [sys.executable, "-c", script, str(place.out / f"{item.name}.json")]


WRITE = f"import sys, json; open(sys.argv[1], 'w').write('''{json.dumps(RESULT)}''')"
SLEEP = "import time; time.sleep(60)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
REFUSED = "import sys; sys.exit('Error: mnist was not found')"
SLOW = f"import time; time.sleep(0.6); {WRITE}"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        paper, entry = name.split(".")
        monkeypatch.setitem(EXPERIMENTS[paper], entry, Fake())


def queue_of(
    folder: Path, scripts: dict[str, list[str]], **options: float
) -> tuple[Queue, Scripts, list[str]]:
    lines: list[str] = []
    made = Scripts(folder, scripts)
    place = Place(out=folder, tell=lines.append)
    jobs = int(options.pop("jobs", 1))
    return Queue(items_of(tuple(scripts), "quick"), place, jobs=jobs, command=made, **options), made, lines


@pytest.mark.usefixtures("fakes")
def test_entries_run_once_in_their_order_and_not_again(tmp_path: Path) -> None:
    queue, scripts, lines = queue_of(tmp_path, {name: [WRITE] for name in NAMES})
    queue.run()
    assert scripts.started == list(NAMES)
    assert [row["status"] for row in queue.as_rows()] == ["done"] * 3
    assert "[3/3]" in lines[-1]
    again, scripts, lines = queue_of(tmp_path, {name: [REFUSED] for name in NAMES})
    again.run()
    assert scripts.started == []
    assert lines == ["0 of 3 entries to run, 1 at a time"]


@pytest.mark.usefixtures("fakes")
def test_what_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    queue, scripts, _ = queue_of(
        tmp_path, {NAMES[0]: [REFUSED], NAMES[1]: [KILLED], NAMES[2]: [WRITE]}, jobs=2
    )
    queue.run()
    assert [row["status"] for row in queue.as_rows()] == ["failed", "failed", "done"]
    assert queue.as_rows()[0]["error"] == "Error: mnist was not found"
    assert scripts.started.count(NAMES[1]) == 3, "a killed process is started again, but not for ever"


@pytest.mark.usefixtures("fakes")
def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    queue, scripts, _ = queue_of(tmp_path, {NAMES[0]: [KILLED, WRITE]})
    queue.run()
    assert scripts.started == [NAMES[0]] * 2
    assert queue.as_rows()[0]["status"] == "done"


@pytest.mark.usefixtures("fakes")
def test_a_long_entry_makes_room_for_the_next_one(tmp_path: Path) -> None:
    queue, scripts, lines = queue_of(tmp_path, {NAMES[0]: [SLEEP, WRITE], NAMES[1]: [WRITE]}, minutes=0.01)
    queue.run()
    assert scripts.started == [NAMES[0], NAMES[1], NAMES[0]]
    assert any("stopped, and kept" in line for line in lines)


def test_an_entry_that_would_begin_anew_is_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:2]:
        monkeypatch.setitem(EXPERIMENTS["gip"], name.split(".")[1], Fake(can_resume=False))
    queue, scripts, _ = queue_of(tmp_path, {NAMES[0]: [SLOW], NAMES[1]: [WRITE]}, minutes=0.001)
    queue.run()
    assert scripts.started == [NAMES[0], NAMES[1]]


def test_entries_that_share_a_training_never_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shared in zip(NAMES, ("xy", "yz", "w"), strict=True):
        monkeypatch.setitem(EXPERIMENTS["gip"], name.split(".")[1], Fake(shared=frozenset(shared)))
    queue, scripts, _ = queue_of(tmp_path, {name: [SLOW] for name in NAMES}, jobs=2)
    queue.run()
    assert scripts.started == [NAMES[0], NAMES[2], NAMES[1]]


@pytest.mark.usefixtures("fakes")
def test_a_process_that_outlived_its_queue_is_waited_for(tmp_path: Path) -> None:
    first, _, _ = queue_of(tmp_path, {NAMES[0]: [SLOW]})
    first._start(first.items[0])  # and the queue is gone
    second, others, lines = queue_of(tmp_path, {NAMES[0]: [REFUSED]})
    second.run()
    assert others.started == []
    assert any("runs already" in line for line in lines)
    assert second.as_rows()[0]["status"] == "done"


@pytest.mark.usefixtures("fakes")
def test_an_interrupt_stops_the_running_entries_once_and_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, scripts, _ = queue_of(tmp_path, {NAMES[0]: [SLEEP], NAMES[1]: [WRITE]})
    sleep, looks = time.sleep, []

    def interrupted(seconds: float) -> None:
        sleep(seconds)
        looks.append(seconds)
        if len(looks) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("quietgrad.lab.papers.queue.time.sleep", interrupted)
    with pytest.raises(Stopped, match="Start the command again"):
        queue.run()
    assert scripts.started == [NAMES[0]]
    assert [row["status"] for row in queue.as_rows()] == ["waiting", "waiting"]


def test_items_are_named_by_paper_entry_and_scale() -> None:
    assert items_of(["gep.table1.full", "gip.table5"], "quick") == [
        QueueItem("gep", "table1", "full"),
        QueueItem("gip", "table5", "quick"),
    ]
    every = items_of((), "reduced")
    assert QueueItem("rgp", "table2", "reduced") in every
    assert all("reduced" in item.experiment.scales for item in every)
    for names, scale, message in (
        (["gepp.table1"], "quick", "Unknown paper"),
        (["gep.table9"], "quick", "has no 'table9'"),
        (["gep.table1"], None, "with a scale"),
        ((), None, "--scale"),
        (["gep.lemma3.1"], "quick", "has no experiment"),
        (["gep.figure1.full"], None, "runs at quick"),
    ):
        with pytest.raises(LabError, match=message):
            items_of(names, scale)  # type: ignore[arg-type]


def test_the_command_prints_what_is_done_as_json(tmp_path: Path) -> None:
    (tmp_path / "gip.table5.quick.json").write_text(json.dumps(RESULT))
    run = CliRunner().invoke(app, ["papers", "queue", "gip.table5.quick", "--out", str(tmp_path), "--json"])
    assert run.exit_code == 0, run.output
    row = json.loads(run.stdout)[0]
    assert (row["item"], row["status"], row["verdict"]) == ("gip.table5.quick", "done", "holds")
    two = CliRunner().invoke(app, ["papers", "gep", "table1", "table2"])
    assert two.exit_code == 2
    assert "papers queue runs several" in two.output


@pytest.mark.slow
def test_a_queue_that_is_killed_again_and_again_finishes_and_counts_right(tmp_path: Path) -> None:
    """kill -9 of the queue, or of all its processes, in the middle of real trainings; then all steps are counted."""
    command = [sys.executable, "-m", "tests.papers.tiny_queue", *NAMES, "--scale", "quick", "--jobs", "2"]
    command += ["--out", str(tmp_path), "--json"]
    for releases, everything in ((1, True), (STEPS // 2, False), (2 * STEPS, True), (3 * STEPS, False)):
        queue = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while queue.poll() is None and _released(tmp_path) < releases:
            time.sleep(0.01)
        children = _children_of(queue.pid) if everything else []
        queue.kill()
        for child in children:
            os.kill(child, signal.SIGKILL)
        queue.wait()
    done = subprocess.run(command, capture_output=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr.decode()
    assert [row["status"] for row in json.loads(done.stdout)] == ["done"] * 3
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 5, "entries that share a training have it once"
    lost = 0
    for run in runs:
        results = json.loads((run / "results.json").read_text())
        assert results["steps"] + results["lost"] == STEPS, "a step is in the weights, or named as lost"
        assert len((run / "ledger.jsonl").read_text().splitlines()) == 1 + STEPS
        lost += results["lost"]
    notes: dict[str, str] = {}
    for name in NAMES:
        result = json.loads((tmp_path / f"{name}.quick.json").read_text())
        notes |= {row["label"]: row["note"] for row in result["finding"]["rows"]}
    assert set(notes) == set("abcde")
    said = [int(note.split(", ")[3].split()[0]) for note in notes.values() if "lost" in note]
    assert sum(said) == lost, "a table says how many steps its weights lack"


def _released(folder: Path) -> int:
    ledgers = [path.read_bytes().count(b"\n") - 1 for path in folder.glob("runs/*/ledger.jsonl")]
    return sum(max(0, lines) for lines in ledgers)


def _children_of(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []
