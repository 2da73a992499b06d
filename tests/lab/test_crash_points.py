"""Every write of a command, killed, torn and filled up: the short form of `benchmarks.crash_points`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.crash_points import COMMANDS, measure, write_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,  # forks, which a process that has loaded the stand-in device may not survive
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_broken_off_run_forgets_a_release_or_stays_unfinished(tmp_path: Path, command: str) -> None:
    tally = measure(command, write_task(tmp_path), every=23)
    assert tally.broken_off >= 3, "the places were never reached"
    assert not tally.failures
    assert (tally.under_counts, tally.unfinishable, tally.tracebacks) == (0, 0, 0)
