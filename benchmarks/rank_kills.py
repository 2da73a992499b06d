"""Kill one rank in the middle of a step, resume on another world size, and compare the ledger with what was seen.

    python -m benchmarks.rank_kills --out kills.jsonl            70 kills; goes on where an earlier run stopped
    python -m benchmarks.rank_kills --out kills.jsonl --summary  what the file says

Each case is a phase of a step, a victim, a world of 2 or 4 and a reducer. A case is wrong if a rank hangs, if the
ledger holds fewer releases than any rank saw, or if the resumed run cannot be finished.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import quietgrad as qg

STEPS, DIES_AT = 3, 1
PHASES = (
    "before the forward",
    "in the forward",
    "before the release",
    "before the ledger",
    "after the ledger",
    "after the release",
    "saving",
)
RESUMED = {2: 4, 4: 2}
PATIENCE = 60.0
CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Case:
    """One kill."""

    phase: str
    victim: int
    world: int
    reducer: str


def cases() -> Iterator[Case]:
    for phase, reducer in itertools.product(PHASES, ("AllReduce", "Sharded")):
        for world, victims in ((2, (0, 1)), (4, (0, 1, 3))):
            yield from (Case(phase, victim, world, reducer) for victim in victims)


class Net(nn.Module):
    """Two layers, and a place in the forward at which a rank may die."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 11), nn.Linear(11, 3)
        self.dies: Path | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if self.dies is not None:
            die(self.dies)
        out: torch.Tensor = self.second(hidden)
        return out


def die(folder: Path) -> None:
    (folder / "died").write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def records() -> TensorDataset:
    rng = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(40, 6, generator=rng), torch.randint(3, (40,), generator=rng))


class Run:
    """Train on one rank to the end of the plan, or to the rank's death."""

    def __init__(self, rank: int, folder: Path, case: Case, *, kills: bool) -> None:
        self.rank, self.folder, self.case = rank, folder, case
        self.dying = case.phase if kills and rank == case.victim else ""
        torch.manual_seed(0)
        self.model = Net()
        self.sharded = case.reducer == "Sharded"
        if self.sharded:
            fully_shard(self.model.first)
            fully_shard(self.model)
        self.reducer = (qg.distributed.Sharded if self.sharded else qg.distributed.AllReduce)(timeout=30)

    def train(self) -> None:
        batches = qg.PoissonBatches(records(), rate=0.3, steps=STEPS)
        mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
        ledger = self.folder / "ledger.jsonl"
        with qg.Privatizer(self.model, mechanism, batches, ledger=ledger, reducer=self.reducer) as private:
            self._load(private)
            if self.dying.endswith("the ledger"):
                self._die_at_the_ledger(private)
            for batch in batches:
                if private.ledger.upcoming is None:
                    break
                self._step(private, batch)

    def _step(self, private: qg.Privatizer, batch: Any) -> None:
        now = private.step == DIES_AT
        if now and self.dying == "before the forward":
            die(self.folder)
        self.model.dies = self.folder if now and self.dying == "in the forward" else None
        for x, y in batch.split(64):
            private.backward(F.cross_entropy(self.model(x), y, reduction="none"))
        if now and self.dying in ("before the release", "in the forward"):
            die(self.folder)  # also where a part was empty, so that no forward ran
        private.release()
        with (self.folder / f"seen-{self.rank}").open("a") as file:
            file.write("release\n")
        if now and self.dying == "after the release":
            die(self.folder)
        with torch.no_grad():
            for p in private.parameters.values():
                assert p.grad is not None
                p.sub_(0.1 * p.grad)
        self._save(private, dies=now and self.dying == "saving")

    def _die_at_the_ledger(self, private: qg.Privatizer) -> None:
        record = private.ledger.record

        def recorded(*args: Any, **options: Any) -> None:
            if private.step == DIES_AT and self.dying == "before the ledger":
                time.sleep(1.0)  # time for the others to go on, if they do not wait
                die(self.folder)
            record(*args, **options)
            if private.step == DIES_AT:
                die(self.folder)

        private.ledger.record = recorded  # type: ignore[method-assign]

    def _save(self, private: qg.Privatizer, *, dies: bool) -> None:
        """Write into a new folder, which counts once the last file in it is complete."""
        place = self.folder / f"step-{private.step}"
        place.mkdir(exist_ok=True)
        if self.sharded:
            save_shards({"model": self.model.state_dict()}, checkpoint_id=place)
        if dies:
            die(self.folder)
        if self.rank == 0:
            torch.save(self.model.state_dict() if not self.sharded else {}, place / "whole.pt")
            torch.save(private.state_dict(), place / "private.part")
            (place / "private.part").rename(place / "private.pt")

    def _load(self, private: qg.Privatizer) -> None:
        found = sorted(self.folder.glob("step-*/private.pt"), key=lambda file: int(file.parent.name[5:]))
        last = self.reducer.broadcast(lambda: str(found[-1].parent) if found else "")
        if not last:
            return
        if self.sharded:
            state = {"model": self.model.state_dict()}
            load_shards(state, checkpoint_id=last)
            self.model.load_state_dict(state["model"])
        else:
            self.model.load_state_dict(torch.load(Path(last, "whole.pt"), weights_only=True))
        private.load_state_dict(torch.load(Path(last, "private.pt"), weights_only=True))


def enter(rank: int, world: int, folder: str, case: Case, kills: bool) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.stderr = Path(folder, f"errors-{rank}").open("a")  # noqa: SIM115 (open until the process ends)
    faulthandler.dump_traceback_later(2 * PATIENCE, exit=True, file=sys.stderr)
    place = f"file://{folder}/rendezvous-{'kill' if kills else 'resume'}"
    dist.init_process_group(
        "gloo", init_method=place, rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE)
    )
    Run(rank, Path(folder), case, kills=kills).train()


def launch(world: int, folder: str, case: Case, *, kills: bool) -> tuple[list[int | None], float]:
    """Run all ranks; how each ended, and how many seconds after the victim's death the last one had."""
    ranks = [CONTEXT.Process(target=enter, args=(rank, world, folder, case, kills)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(3 * PATIENCE)
        if rank.exitcode is None:
            rank.kill()
            rank.join()
    died = Path(folder, "died")
    since = float(died.read_text()) if died.exists() else math.inf
    return [rank.exitcode for rank in ranks], time.monotonic() - since


def lines(folder: str) -> int:
    file = Path(folder, "ledger.jsonl")
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0


def seen(folder: str) -> int:
    files = list(Path(folder).glob("seen-*"))
    return max((len(file.read_text().splitlines()) for file in files), default=0)


def measure(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        exits, seconds = launch(case.world, folder, case, kills=True)
        counted, shown = lines(folder), seen(folder)
        resumed, _ = launch(RESUMED[case.world], folder, case, kills=False)
        survivors = [code for rank, code in enumerate(exits) if rank != case.victim]
        return {
            **asdict(case),
            "killed": exits[case.victim] == -signal.SIGKILL,
            "hung": seconds > PATIENCE or None in exits or not all(code == 1 for code in survivors),
            "seconds": round(seconds, 1),
            "ledger": counted,
            "seen": shown,
            "under-counted": counted < shown or lines(folder) < seen_in_all(folder, shown),
            "finished": all(code == 0 for code in resumed) and lines(folder) == STEPS,
        }


def seen_in_all(folder: str, _: int) -> int:
    """Releases that rank 0 saw in both runs: each has a line of its own."""
    file = Path(folder, "seen-0")
    return len(file.read_text().splitlines()) if file.exists() else 0


def summarize(rows: list[dict[str, Any]]) -> None:
    for reducer in ("AllReduce", "Sharded"):
        mine = [row for row in rows if row["reducer"] == reducer]
        wrong = {key: sum(row[key] for row in mine) for key in ("hung", "under-counted")}
        finished = sum(row["finished"] for row in mine)
        slowest = max((row["seconds"] for row in mine), default=0.0)
        print(
            f"{reducer}: {len(mine)} kills, {wrong['hung']} hung, {wrong['under-counted']} under-counted, "
            f"{finished} resumed to the end, all ranks ended after {slowest:g} s at most"
        )
    for row in rows:
        if row["hung"] or row["under-counted"] or not row["finished"] or not row["killed"]:
            print(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    # Ranks are forks of a server that has imported all of it. Not at import: tests set what their own server imports.
    CONTEXT.set_forkserver_preload(
        [
            "torch.distributed.fsdp",
            "torch.distributed.tensor",
            "torch.distributed.checkpoint",
            "quietgrad._names",
            "quietgrad.distributed",
            "quietgrad.methods",
        ]
    )
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {Case(row["phase"], row["victim"], row["world"], row["reducer"]) for row in rows}
    for case in () if options.summary else cases():
        if case not in done:
            rows.append(measure(case))
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    summarize(rows)


if __name__ == "__main__":
    main()
