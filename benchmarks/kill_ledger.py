"""kill -9 a private training run at random moments and check that its ledger never under-counts.

    python -m benchmarks.kill_ledger --kills 50 --json

Each round forks a child that resumes the run (ledger, weights, optimizer-free updates saved atomically after every
step) and kills it after a random time. Then the ledger must read back, hold the checkpoint's line, and count at
least as many releases as updates reached the saved weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting.ledger import Ledger

PLANNED_STEPS = 10_000


def train(folder: Path) -> None:
    """Resume from the last saved weights and train until killed."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
    batches = qg.PoissonBatches(data, rate=0.2, steps=PLANNED_STEPS)
    private = qg.Privatizer(
        model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches, ledger=folder / "ledger.jsonl"
    )
    updates = 0
    if (folder / "weights.pt").exists():
        saved = load(folder)
        model.load_state_dict(saved["model"])
        private.load_state_dict(saved["private"])
        updates = saved["updates"]
    for batch in batches:
        for x, y in batch.split(64):
            private.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
        private.release()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
        updates += 1
        save(folder, {"model": model.state_dict(), "private": private.state_dict(), "updates": updates})


def save(folder: Path, state: dict[str, Any]) -> None:
    """Either the old weights or the new ones, never a part."""
    with open(folder / "weights.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "weights.tmp", folder / "weights.pt")


def load(folder: Path) -> dict[str, Any]:
    """The last saved weights and counters."""
    saved: dict[str, Any] = torch.load(folder / "weights.pt", weights_only=True)
    return saved


def kill_once(folder: Path, seconds: float) -> None:
    """Train in a child and kill it that long after it has written something."""
    before = _size(folder)
    child = os.fork()
    if child == 0:
        try:
            train(folder)
        finally:
            os._exit(1)  # only reached on an error: a healthy child is killed
    deadline = time.monotonic() + 60
    while _size(folder) == before and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("The training child ended by itself: see its traceback above.")


def check(folder: Path) -> tuple[int, int]:
    """(lines of the ledger, updates in the saved weights); raises if the ledger is broken or short."""
    ledger = Ledger.read(folder / "ledger.jsonl")
    if not (folder / "weights.pt").exists():
        return ledger.count, 0
    saved = load(folder)
    ledger.verify_against(saved["private"]["ledger_head"], saved["private"]["ledger_count"])
    if ledger.count < saved["updates"]:
        raise RuntimeError(
            f"{saved['updates']} updates reached the weights, the ledger has {ledger.count} lines."
        )
    return ledger.count, saved["updates"]


def survive(kills: int, folder: Path, seed: int = 0) -> list[tuple[int, int]]:
    """Kill the same run again and again; (ledger lines, saved updates) after each kill."""
    torch.set_num_threads(1)
    moments = random.Random(seed)
    results = []
    for _ in range(kills):
        kill_once(folder, moments.uniform(0.0, 0.15))
        results.append(check(folder))
    return results


def _size(folder: Path) -> int:
    path = folder / "ledger.jsonl"
    return path.stat().st_size if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = survive(options.kills, Path(folder))
    lines, updates = results[-1]
    replayed = lines - updates
    if options.json:
        print(
            json.dumps({"kills": len(results), "ledger": lines, "updates": updates, "over_counted": replayed})
        )
    else:
        print(
            f"{len(results)} kills survived: {lines} ledger lines, {updates} updates saved, {replayed} over-counted"
        )


if __name__ == "__main__":
    main()
