"""Law 8, the ledger's part: nothing is lost, nothing can be changed, the plan is never exceeded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kill_ledger import survive

from quietgrad.accounting import (
    GaussianEvent,
    JointEvent,
    Ledger,
    Phase,
    event_from_dict,
    event_to_dict,
)
from quietgrad.methods.gip import MallowsSelection

EVENT = GaussianEvent(noise_multiplier=1.1)
OTHER = GaussianEvent(noise_multiplier=0.9)
PLAN = (Phase(event=EVENT, rate=0.1, count=6), Phase(event=OTHER, rate=0.1, count=2))
FACTS = {"clip": 1.0, "shares": [0.5, 0.5]}


def opened(path: Path | None) -> Ledger:
    return Ledger(path, plan=PLAN, description=FACTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of four lines."""
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    for step in range(4):
        ledger.record(EVENT, 0.1, step=step)
    ledger.close()
    return path


@pytest.mark.parametrize("on_disk", [True, False])
def test_it_counts_equal_neighbours_together(tmp_path: Path, on_disk: bool) -> None:
    ledger = opened(tmp_path / "ledger.jsonl" if on_disk else None)
    for step in range(6):
        ledger.record(EVENT, 0.1, step=step)
    ledger.record(OTHER, 0.1, step=6)
    assert ledger.count == 7
    assert ledger.phases == (PLAN[0], Phase(event=OTHER, rate=0.1, count=1))
    assert ledger.upcoming == Phase(event=OTHER, rate=0.1, count=1)


def test_a_resumed_run_appends_and_replayed_steps_count_again(path: Path) -> None:
    ledger = opened(path)
    assert ledger.count == 4
    ledger.record(EVENT, 0.1, step=2)
    ledger.record(EVENT, 0.1, step=3)
    ledger.close()
    assert opened(path).phases == PLAN[:1]
    assert Ledger.read(path).phases == PLAN[:1]
    assert Ledger.read(path).description == FACTS


def test_two_runs_of_one_plan_have_different_chains(path: Path, tmp_path: Path) -> None:
    """Everything that they release is equal; a checkpoint of one is still no checkpoint of the other."""
    other = opened(tmp_path / "other.jsonl")
    for step in range(4):
        other.record(EVENT, 0.1, step=step)
    with pytest.raises(ValueError, match="another run"):
        other.verify_against(Ledger.read(path).head, 4)
    Ledger.read(path).verify_against(Ledger.read(path).head, 4)


def test_the_plan_is_never_exceeded(path: Path) -> None:
    ledger = opened(path)
    ledger.record(EVENT, 0.1, step=4)
    ledger.record(EVENT, 0.1, step=5)
    with pytest.raises(ValueError, match=r"used up.*upcoming"):
        ledger.record(EVENT, 0.1, step=5)
    for event, rate in ((GaussianEvent(noise_multiplier=1.2), 0.1), (EVENT, 0.2)):
        with pytest.raises(ValueError, match="planned"):
            ledger.record(event, rate, step=6)
    assert ledger.count == 6
    assert path.read_bytes().count(b"\n") == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"plan": (Phase(event=EVENT, rate=0.2, count=6), PLAN[1])},
        {"plan": (Phase(event=GaussianEvent(noise_multiplier=1.0), rate=0.1, count=6), PLAN[1])},
        {"plan": PLAN[:1]},
        {"plan": None},
        {"description": {**FACTS, "clip": 2.0}},
        {"description": None},
    ],
    ids=["rate", "noise", "steps", "no plan", "clip", "no description"],
)
def test_resuming_with_other_parameters_is_refused(path: Path, changed: dict[str, Any]) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"changed: .*Resume with the old parameters"):
        Ledger(path, **{"plan": PLAN, "description": FACTS, **changed})
    assert path.read_bytes() == before


def test_a_line_torn_at_any_byte_is_counted(path: Path) -> None:
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for end in range(start + 1, len(whole), 7):
        path.write_bytes(whole[:end])
        assert Ledger.read(path).count == 4
        assert path.read_bytes() == whole[:end]
        ledger = opened(path)
        assert ledger.count == 4
        ledger.record(EVENT, 0.1, step=4)
        ledger.close()
        resumed = opened(path)
        assert resumed.count == 5
        resumed.close()


def test_a_header_torn_at_any_byte_starts_afresh(path: Path) -> None:
    header = path.read_bytes().split(b"\n")[0]
    for end in range(0, len(header) + 1, 9):
        path.write_bytes(header[:end])
        ledger = opened(path)
        assert ledger.count == 0
        ledger.close()
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="another file"):
        opened(path)


def test_edited_bytes_are_detected_wherever_they_are(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 5):
        edited = bytearray(whole)
        edited[at] ^= 1
        path.write_bytes(bytes(edited))
        with pytest.raises(ValueError, match=r"ledger|kind"):
            opened(path)


def test_removed_swapped_and_cut_interior_lines_are_detected(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    removed = [*lines[:2], *lines[3:]]
    swapped = [lines[0], lines[2], lines[1], *lines[3:]]
    cut = [*lines[:2], lines[2][:30], *lines[3:]]
    for broken in (removed, swapped, cut):
        path.write_bytes(b"\n".join(broken))
        with pytest.raises(ValueError, match=r"line \d.*[Rr]estore"):
            opened(path)


def test_deleted_last_lines_are_detected_with_a_checkpoint(path: Path) -> None:
    ledger = opened(path)
    head, count = ledger.head, ledger.count
    ledger.record(EVENT, 0.1, step=4)
    ledger.verify_against(head, count)
    ledger.verify_against(ledger.head, ledger.count)
    ledger.close()
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:4]) + b"\n")
    short = opened(path)
    with pytest.raises(ValueError, match="missing"):
        short.verify_against(head, count)
    short.record(EVENT, 0.1, step=77)
    with pytest.raises(ValueError, match="another run"):
        short.verify_against(head, count)


def test_a_line_beyond_the_plan_is_refused_on_reading(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    free = Ledger(path)
    for step in range(3):
        free.record(EVENT, 0.1, step=step)
    free.close()
    assert Ledger.read(path).count == 3
    with pytest.raises(ValueError, match="plan changed"):
        opened(path)


def test_two_writers_are_refused(path: Path) -> None:
    ledger = opened(path)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            opened(path)
        except ValueError as error:
            os.write(write_end, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as message:
        assert "another process" in message.read()
    ledger.record(EVENT, 0.1, step=4)


def test_the_same_path_twice_in_one_process_is_refused(path: Path) -> None:
    ledger = opened(path)
    with pytest.raises(ValueError, match="another Privatizer or Ledger of this one"):
        opened(path)
    ledger.close()
    opened(path).close()


def test_reading_the_ledger_in_the_writing_process_keeps_its_lock(path: Path) -> None:
    """A POSIX lock would be lost when the reader closes the file."""
    ledger = opened(path)
    assert Ledger.read(path).count == ledger.count
    script = f"import fcntl; fcntl.flock(open({str(path)!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in other.stderr
    ledger.close()


def test_a_fork_cannot_write_its_parents_ledger(path: Path) -> None:
    ledger = opened(path)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ledger.record(EVENT, 0.1, step=4)
        except ValueError as error:
            os.write(write_end, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as message:
        assert "fork" in message.read()
    ledger.record(EVENT, 0.1, step=4)
    assert Ledger.read(path).count == 5


def forged(path: Path) -> None:
    """What somebody does who may write the file: fewer releases, under a fresh chain."""
    written = Ledger.read(path)
    path.unlink()
    ledger = Ledger(path, plan=written.plan, description=written.description)
    ledger.record(EVENT, 0.1, step=0)
    ledger.close()


def test_without_a_key_a_ledger_written_anew_passes_as_documented(path: Path) -> None:
    forged(path)
    assert Ledger.read(path).count == 1


def test_with_a_key_a_ledger_written_anew_without_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keyed.jsonl"
    monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", "a secret")
    ledger = opened(path)
    for step in range(4):
        ledger.record(EVENT, 0.1, step=step)
    ledger.close()
    assert Ledger.read(path).count == 4
    assert "a secret" not in path.read_text()
    resumed = opened(path)
    resumed.record(EVENT, 0.1, step=4)
    resumed.close()
    whole = path.read_bytes()

    monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", "a guess")
    with pytest.raises(ValueError, match="holds another secret"):
        Ledger.read(path)
    monkeypatch.delenv("QUIETGRAD_LEDGER_KEY")
    with pytest.raises(ValueError, match="is keyed"):
        Ledger.read(path)

    path.unlink()
    for secret in (None, "a guess"):
        if secret is not None:
            monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", secret)
        fresh = opened(path)
        fresh.record(EVENT, 0.1, step=0)
        fresh.close()
        monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", "a secret")
        with pytest.raises(ValueError, match=r"without a key|another secret"):
            Ledger.read(path)
        path.unlink()
    path.write_bytes(whole)
    assert Ledger.read(path).count == 5


def test_a_closed_ledger_records_nothing(path: Path) -> None:
    ledger = opened(path)
    ledger.close()
    with pytest.raises(ValueError, match="closed"):
        ledger.record(EVENT, 0.1, step=4)
    assert ledger.count == 4


def test_the_line_is_on_disk_before_record_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(path)
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_bytes().count(b"\n")))
    ledger.record(EVENT, 0.1, step=4)
    assert seen == [6]


def test_a_failed_write_stops_the_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(path)

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        ledger.record(EVENT, 0.1, step=4)
    with pytest.raises(ValueError, match="closed"):
        ledger.record(EVENT, 0.1, step=4)
    monkeypatch.undo()
    assert opened(path).count >= ledger.count


def test_events_survive_json_exactly() -> None:
    selection = MallowsSelection(theta=3.08e-5 / 7, group_size=256, kept=26, groups=10_672)
    for event in (
        EVENT,
        selection,
        JointEvent(gaussian=GaussianEvent(noise_multiplier=1 / 3), selections=(selection,)),
    ):
        assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    for broken in ({}, {"kind": "laplace"}, {"kind": "gaussian"}, {"kind": "joint", "gaussian": {}}):
        with pytest.raises(ValueError, match=r"description of an event|Expected kind"):
            event_from_dict(broken)


def test_kill_9_at_random_moments_never_under_counts(tmp_path: Path) -> None:
    results = survive(4, tmp_path)
    assert len(results) == 4
    assert results[-1][0] > 0
    assert all(lines >= updates for lines, updates in results)
