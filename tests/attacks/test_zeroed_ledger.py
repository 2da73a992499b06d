"""Zeros in the place of ledger lines: a power cut can leave a file's length on disk, and not its content.

Whoever gains from it continues a run whose last releases are forgotten.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Phase

EVENT = GaussianEvent(noise_multiplier=1.1)
PLAN = (Phase(event=EVENT, rate=0.1, count=30),)


def written(path: Path, lines: int, plan: tuple[Phase, ...] | None = PLAN) -> bytes:
    ledger = Ledger(path, plan=plan)
    for step in range(lines):
        ledger.record(EVENT, 0.1, step=step)
    ledger.close()
    return path.read_bytes()


def zeroed(content: bytes, lines: int, kept: int = 0) -> bytes:
    """The last lines as zeros, but for the first bytes of the first of them."""
    start = sum(len(line) + 1 for line in content.split(b"\n")[: -lines - 1]) + kept
    return content[:start] + bytes(len(content) - start)


@pytest.mark.parametrize("lost", [1, 2, 5, 12])
@pytest.mark.parametrize("kept", [0, 40])
def test_zeroed_lines_count_at_least_as_often_as_they_were(tmp_path: Path, lost: int, kept: int) -> None:
    """On 0.2: as one, however many they were."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(zeroed(written(path, 14), lost, kept))
    assert 14 <= Ledger.read(path).count <= 17
    ledger = Ledger(path, plan=PLAN)
    counted = ledger.count
    assert 14 <= counted <= 17
    ledger.record(EVENT, 0.1, step=14)
    ledger.close()
    assert Ledger.read(path).count == counted + 1


def test_no_more_than_the_plan_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(zeroed(written(path, 30), 3))
    assert Ledger.read(path).count == 30


def test_zeros_without_a_plan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(zeroed(written(path, 14, plan=None), 2))
    with pytest.raises(ValueError, match="Restore the ledger"):
        Ledger.read(path)


def test_a_kill_during_the_repair_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 0.2: the torn line was cut off first, and forgotten if its count could not be written."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(written(path, 14)[:-20])

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(OSError, match="space"):
                Ledger(path, plan=PLAN)
        assert Ledger.read(path).count == 14
    assert Ledger(path, plan=PLAN).count == 14
