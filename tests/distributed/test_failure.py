"""A rank that dies or hangs: the others stop, the ledger has counted enough, and the run can be resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad.distributed import AllReduce
from tests.cases.world import losses_of, records, small_net
from tests.distributed.launch import Outcome, launch, values

STEPS, SAVE_EVERY = 8, 2
METHOD = qg.methods.rgp(rank=1, clip=1.0).with_noise(1.0)
DELTA = 1e-5
PATIENCE = 4
"""Seconds that the ranks wait for one that hangs."""


class Failing(AllReduce):
    """Ends or hangs the process in the middle of a release: after the ledger, before its part is added."""

    def __init__(self, group: dist.ProcessGroup | None, at: int, how: str) -> None:
        super().__init__(group)
        self._left, self._how = at, how

    def all_reduce(self, blocks: Blocks) -> Blocks:
        self._left -= 1
        if self._left < 0 and self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._left < 0:
            time.sleep(3 * PATIENCE)
        return super().all_reduce(blocks)


def train(rank: int, folder: str, failing: int | None, how: str = "kill") -> dict[str, Any]:
    """Trains to the end of the plan; each rank notes every release that it has seen."""
    model = small_net()
    batches = qg.PoissonBatches(records(), rate=0.25, steps=STEPS)
    seen = 0
    ledger, saved = Path(folder, "ledger.jsonl"), Path(folder, "checkpoint.pt")
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE)) if how == "hang" else None
    reducer = Failing(group, 5 if rank == failing else 10**9, how)
    with qg.Privatizer(model, METHOD, batches, ledger=ledger, reducer=reducer) as private:
        if saved.exists():
            checkpoint = torch.load(saved, weights_only=True)
            model.load_state_dict(checkpoint["model"])
            private.load_state_dict(checkpoint["private"])
        first = private.step
        for batch in batches:
            if private.ledger.upcoming is None:
                break
            for x, y in batch.split(64):
                private.backward(losses_of(model, x, y))
            private.release()
            seen += 1
            with Path(folder, f"seen-{rank}").open("a") as file:
                file.write("release\n")
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.sub_(0.1 * p.grad)
            if rank == 0 and private.step % SAVE_EVERY == 0:
                torch.save({"model": model.state_dict(), "private": private.state_dict()}, saved)
        return {"first": first, "seen": seen, "spent": private.epsilon(DELTA, spent=True)}


def ledger_lines(folder: Path) -> int:
    """Releases that the file counts; every line whole."""
    return len([json.loads(line) for line in Path(folder, "ledger.jsonl").read_text().splitlines()]) - 1


def seen_by_anyone(folder: Path, world: int) -> int:
    files = [Path(folder, f"seen-{rank}") for rank in range(world)]
    return max(len(file.read_text().splitlines()) for file in files if file.exists())


def check_survivors(outcomes: list[Outcome], dead: int) -> None:
    assert outcomes[dead].exit_code == -signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank != dead:
            assert outcome.exit_code == 0  # it ended by itself, with an error it could report
            assert "Another rank ended or did not answer" in str(outcome.error)


@pytest.mark.parametrize(("dead", "resumed_world"), [(3, 4), (0, 2)])
def test_a_killed_rank_stops_the_others_and_the_run_resumes(
    dead: int, resumed_world: int, tmp_path: Path
) -> None:
    """Killed after rank 0 (or while it) wrote the ledger: step 5 counts although nobody saw its release."""
    check_survivors(launch(4, train, str(tmp_path), dead), dead)
    assert seen_by_anyone(tmp_path, 4) == 5
    assert ledger_lines(tmp_path) == 6
    ranks = values(launch(resumed_world, train, str(tmp_path), None))
    for result in ranks:
        assert result["first"] == 4  # the last checkpoint
        assert result["seen"] == STEPS - 6  # replayed steps use the plan up
        plan = qg.Privatizer(small_net(), METHOD, qg.PoissonBatches(records(), rate=0.25, steps=STEPS))
        assert result["spent"] == pytest.approx(plan.epsilon(DELTA))
        plan.close()
    assert ledger_lines(tmp_path) == STEPS


def test_a_hanging_rank_ends_the_others_after_the_groups_timeout(tmp_path: Path) -> None:
    for outcome in launch(3, train, str(tmp_path), 1, "hang"):
        assert outcome.exit_code == 0
        assert "Another rank ended or did not answer" in str(outcome.error)
    assert ledger_lines(tmp_path) == 6
    assert seen_by_anyone(tmp_path, 3) == 5
