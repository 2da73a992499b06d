"""Two copies of a run that both go on: the checkpoint of one beside the ledger of the other.

The ledger of the copy that was stopped early then passes for that of the weights that went on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Phase

EVENT = GaussianEvent(noise_multiplier=1.1)
PLAN = (Phase(event=EVENT, rate=0.1, count=8),)


def gone_on(path: Path, steps: int) -> tuple[str, int]:
    """Resume a ledger and return what a checkpoint keeps of it."""
    ledger = Ledger(path, plan=PLAN)
    for _ in range(steps):
        ledger.record(EVENT, 0.1, step=ledger.count)
    ledger.close()
    return ledger.head, ledger.count


@pytest.mark.parametrize("before", [0, 1, 3])
def test_the_checkpoint_of_one_copy_does_not_fit_the_other(tmp_path: Path, before: int) -> None:
    """On 0.2: it fitted unless the copy was made before the first release, as equal steps had equal hashes."""
    mine, theirs = tmp_path / "mine.jsonl", tmp_path / "theirs.jsonl"
    shared = gone_on(mine, before)
    shutil.copy(mine, theirs)
    own, other = gone_on(mine, 2), gone_on(theirs, 2)
    with pytest.raises(ValueError, match="another run"):
        Ledger.read(mine).verify_against(*other)
    Ledger.read(mine).verify_against(*own)
    Ledger.read(mine).verify_against(*shared)
    Ledger.read(theirs).verify_against(*shared)
