"""Real gloo processes for tests: one function on every rank, what each returned or how it ended."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.annotations import executed, is_executed

# The server imports torch once; each rank is then a fork of it that has never run a backward. Ranks execute annotations
# if the test does: what does that is imported before the library.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.distributed.preloaded"])


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: with a value, with an error, or killed (neither)."""

    exit_code: int | None
    value: Any = None
    error: str | None = None


def launch(world: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Outcome]:
    """`function(rank, *args)` in `world` processes of one group.

    Args:
        timeout: seconds of the process group. A rank that still runs after twice that time is ended, and its outcome
            says where it was.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            CONTEXT.Process(target=_enter, args=(rank, world, folder, timeout, is_executed(), function, args))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(2 * timeout + 30)  # after which each has said where it was
            if process.exitcode is None:
                process.kill()
                process.join()
        return [_outcome(Path(folder), rank, process.exitcode) for rank, process in enumerate(processes)]


def values(outcomes: list[Outcome]) -> list[Any]:
    """What the ranks returned, if all went well."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, f"rank {rank}: {outcome.error}"
        assert outcome.exit_code == 0, f"rank {rank} ended with {outcome.exit_code}"
    return [outcome.value for outcome in outcomes]


def _enter(
    rank: int,
    world: int,
    folder: str,
    timeout: float,
    annotations: bool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout),
    )
    hung = Path(folder, f"{rank}.hung").open("w")  # noqa: SIM115 (open until the process ends)
    faulthandler.dump_traceback_later(2 * timeout, exit=True, file=hung)
    value, error = None, None
    try:
        with executed(on=annotations):
            value = function(rank, *args)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    faulthandler.cancel_dump_traceback_later()
    Path(folder, str(rank)).write_bytes(pickle.dumps((value, error)))


def _outcome(folder: Path, rank: int, exit_code: int | None) -> Outcome:
    file = folder / str(rank)
    value, error = pickle.loads(file.read_bytes()) if file.exists() else (None, None)
    hung = folder / f"{rank}.hung"
    if hung.exists() and (trace := hung.read_text()):
        error = f"hung: {trace}"
    return Outcome(exit_code=exit_code, value=value, error=error)
