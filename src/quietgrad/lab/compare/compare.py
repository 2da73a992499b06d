"""A leaderboard at equal (ε, δ): methods × budgets × seeds, between "public only" and "non-private"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import quietgrad as qg
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.compare.comparison import NON_PRIVATE, Comparison, Row, or_infinite, row_of
from quietgrad.lab.compare.ends import non_private, public_only
from quietgrad.lab.compare.parallel import Heard, Tell, run_parallel
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, to_json, write_whole
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.presets import with_method
from quietgrad.lab.run.progress import Reporter
from quietgrad.lab.run.setup import Setup
from quietgrad.lab.run.train import train


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str
    config: Config
    out: Path
    data_dir: Path | None


def compare(
    base: Config,
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    out: Path,
    heard: Heard,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
) -> Comparison:
    """Run what is not there yet, and put everything together in `out/results.json`."""
    todo = jobs(base, methods, epsilons, seeds, out, data_dir)
    _check_folder(out, todo)
    make_folder(out)
    unfinished = [number for number, job in enumerate(todo) if not RunFolder(job.out).finished]
    run_parallel(
        [todo[number] for number in unfinished],
        run_job,
        lambda place, message: heard(unfinished[place], message),
        workers=workers,
    )
    results = [
        run_job(job, partial(heard, number)) for number, job in enumerate(todo)
    ]  # all finished now: read back
    ends = public_only(base, seeds, data_dir)
    made = Comparison(
        epsilons=tuple(epsilons),
        delta=base.privacy.delta,
        total_epsilon=total_epsilon(todo, base.privacy.delta),
        rows=(*ends, *rows(todo, results)),
    )
    write_whole(out / "results.json", to_json(made.as_dict()).encode())
    return made


def jobs(
    base: Config,
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    out: Path,
    data_dir: Path | None,
) -> list[Job]:
    """All runs, the ends included; each has a folder of its own, so a stopped comparison goes on where it was."""
    found = []
    for seed in range(seeds):
        for method in methods:
            for target in epsilons:
                config = _at(_seeded(with_method(base, method), seed), target)
                found.append(Job(method, config, out / f"{method}-eps{target:g}-seed{seed}", data_dir))
        plain = non_private(_seeded(base, seed))
        found.append(Job(NON_PRIVATE, plain, out / f"non_private-seed{seed}", data_dir))
    return found


class Telling(Reporter):
    """Sends a run's progress to the process that shows it."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._steps = tell, 1

    def start(self, config: Config, private: qg.Privatizer, setup: Setup) -> None:
        self._steps = setup.batches.steps

    def stepped(self, step: int) -> None:
        if step % max(1, self._steps // 50) == 0:
            self._tell({"step": step, "steps": self._steps})

    def evaluated(self, point: dict[str, float]) -> None:
        self._tell(dict(point))


def run_job(job: Job, tell: Tell) -> dict[str, Any]:
    """One run, or its result if it is there already."""
    folder = RunFolder(job.out)
    if folder.exists and folder.finished:
        folder.resume(job.config)
    else:
        train(job.config, job.out, resume=folder.exists, data_dir=job.data_dir, reporter=Telling(tell))
    result: dict[str, Any] = folder.read("results.json")
    result["epsilon"] = or_infinite(result["epsilon"])
    tell({"done": True, "accuracy": result["accuracy"], "epsilon": result["epsilon"]})
    return result


def rows(todo: Sequence[Job], results: Sequence[dict[str, Any]]) -> list[Row]:
    """One row per method and budget; best first at each budget."""
    grouped: dict[tuple[str, float], list[int]] = {}
    for number, job in enumerate(todo):
        target = job.config.privacy.epsilon
        grouped.setdefault((job.label, math.inf if target is None else target), []).append(number)
    table = [
        row_of(label, target, [todo[n].out.name for n in numbers], [results[n] for n in numbers])
        for (label, target), numbers in grouped.items()
    ]
    return sorted(table, key=lambda row: (row.target, -row.accuracy))


def total_epsilon(todo: Sequence[Job], delta: float) -> float:
    """What all private runs together would cost if they were made on the same private data."""
    phases = [
        phase
        for job in todo
        if job.config.privacy.epsilon is not None
        for phase in Ledger.read(RunFolder(job.out).ledger).plan or ()
    ]
    return epsilon_of(phases, delta)


def _check_folder(out: Path, todo: Sequence[Job]) -> None:
    """Refuse before anything runs what would fail in the middle: a run's own folder, runs of another config."""
    if RunFolder(out).exists:
        raise LabError(f"{out} holds a single run. Give another --out for the comparison.")
    for job in todo:
        if RunFolder(job.out).exists:
            RunFolder(job.out).resume(job.config)


def _seeded(config: Config, seed: int) -> Config:
    return parse_config(config.plain() | {"training": config.training.model_dump() | {"seed": seed}})


def _at(config: Config, target: float) -> Config:
    return parse_config(config.plain() | {"privacy": {"epsilon": target, "delta": config.privacy.delta}})
