"""A leaderboard at equal (ε, δ): methods × budgets × seeds, between "public only" and "non-private"."""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import torch

import quietgrad as qg
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.config import Config, parse_config
from quietgrad.lab.data import DataError, Parts, load
from quietgrad.lab.errors import LabError
from quietgrad.lab.models import build
from quietgrad.lab.presets import with_method
from quietgrad.lab.progress import Reporter
from quietgrad.lab.run_folder import RunFolder
from quietgrad.lab.train import Setup, accuracy, train
from quietgrad.lab.warm_start import train_on_public

NON_PRIVATE, PUBLIC_ONLY = "non-private", "public only"


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str
    config: Config
    out: Path
    data_dir: Path | None


@dataclass(frozen=True)
class Row:
    """A method at one budget, over its seeds."""

    method: str
    target: float
    accuracy: float
    std: float
    epsilon: float
    seconds: float
    memory_mb: float
    runs: tuple[dict[str, Any], ...]


Heard = Callable[[int, dict[str, Any]], None]
"""Called with a job's number and what it reports: {"step", "steps"}, {"accuracy", "epsilon"}, {"done"}."""


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
        plain = non_private(_seeded(base, seed))
        found.append(Job(NON_PRIVATE, plain, out / f"non_private-seed{seed}", data_dir))
        for method in methods:
            for target in epsilons:
                config = _at(_seeded(with_method(base, method), seed), target)
                found.append(Job(method, config, out / f"{method}-eps{target:g}-seed{seed}", data_dir))
    return found


def non_private(base: Config) -> Config:
    """Ordinary SGD with momentum, neither clipped nor noised: the upper end."""
    return parse_config(
        base.plain()
        | {
            "method": {"name": "dp_sgd", "clip": 1e9},
            "privacy": {"noise_multiplier": 0.0, "delta": base.privacy.delta},
            "training": base.training.model_dump() | {"lr": 0.05, "momentum": 0.9},
        }
    )


def run_all(todo: Sequence[Job], heard: Heard, *, workers: int | None = None) -> list[dict[str, Any]]:
    """Run the jobs in processes of one thread each, as many as there are cores; finished ones are read back."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        # A fresh process for each job, so that its peak memory is its own.
        with context.Pool(workers or os.cpu_count() or 1, maxtasksperchild=1) as pool:
            pending = [pool.apply_async(run_job, (number, job, messages)) for number, job in enumerate(todo)]
            while not all(result.ready() for result in pending):
                for number, message in _drain(messages):
                    heard(number, message)
            for number, message in _drain(messages):
                heard(number, message)
            return [result.get() for result in pending]


def _drain(messages: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    while True:
        try:
            yield messages.get(timeout=0.2)
        except Empty:
            return


class Telling(Reporter):
    """Sends a run's progress to the process that shows it."""

    def __init__(self, number: int, messages: Any) -> None:
        self._number, self._messages, self._steps = number, messages, 1

    def start(self, config: Config, private: qg.Privatizer, setup: Setup) -> None:
        self._steps = setup.batches.steps

    def stepped(self, step: int) -> None:
        if step % max(1, self._steps // 50) == 0:
            self._messages.put((self._number, {"step": step, "steps": self._steps}))

    def evaluated(self, point: dict[str, float]) -> None:
        self._messages.put((self._number, dict(point)))


def run_job(number: int, job: Job, messages: Any) -> dict[str, Any]:
    """One run, or its result if it is there already."""
    torch.set_num_threads(1)
    folder = RunFolder(job.out)
    started = (job.out / "config.toml").exists()
    if started and (job.out / "results.json").exists():
        folder.resume(job.config)
        result: dict[str, Any] = folder.read_json("results.json")
    else:
        reporter = Telling(number, messages)
        outcome = train(job.config, job.out, resume=started, data_dir=job.data_dir, reporter=reporter)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result = {**outcome.__dict__, "memory_mb": memory}
        folder.write_json("results.json", result)
    messages.put((number, {"done": True, "accuracy": result["accuracy"], "epsilon": result["epsilon"]}))
    return result


def rows(todo: Sequence[Job], results: Sequence[dict[str, Any]]) -> list[Row]:
    """Runs that differ in the seed only, put together; best first at each budget."""
    grouped: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for job, result in zip(todo, results, strict=True):
        target = job.config.privacy.epsilon
        grouped.setdefault((job.label, float("inf") if target is None else target), []).append(result)
    table = [_row(label, target, runs) for (label, target), runs in grouped.items()]
    return sorted(table, key=lambda row: (row.target, -row.accuracy))


def _row(label: str, target: float, runs: list[dict[str, Any]]) -> Row:
    accuracies = [run["accuracy"] for run in runs]
    return Row(
        method=label,
        target=target,
        accuracy=statistics.mean(accuracies),
        std=statistics.stdev(accuracies) if len(runs) > 1 else 0.0,
        epsilon=max(run["epsilon"] for run in runs),
        seconds=statistics.mean(run["seconds"] for run in runs),
        memory_mb=max(run["memory_mb"] for run in runs),
        runs=tuple(runs),
    )


def public_only(base: Config, seeds: int, data_dir: Path | None) -> Row | None:
    """Ordinary training on the labelled public part alone, ε = 0; None where public data has no labels."""
    try:
        parts: Parts = load(data_dir=data_dir, **base.data.model_dump() | {"public_labels": True})
        accuracies = [_public_accuracy(base, parts, seed) for seed in range(seeds)]
    except (DataError, LabError):
        return None
    std = statistics.stdev(accuracies) if seeds > 1 else 0.0
    return Row(PUBLIC_ONLY, 0.0, statistics.mean(accuracies), std, 0.0, 0.0, 0.0, ())


def _public_accuracy(base: Config, parts: Parts, seed: int) -> float:
    torch.manual_seed(seed)
    model = build(base.model.name, parts.input_shape, parts.num_classes, **base.model.options)
    train_on_public(model, parts)
    return accuracy(model, parts.test)


def total_epsilon(todo: Sequence[Job], delta: float) -> float:
    """What all private runs together would cost if they were made on the same private data."""
    phases = [
        phase
        for job in todo
        if job.config.privacy.epsilon is not None
        for phase in Ledger.read(RunFolder(job.out).ledger).phases
    ]
    return epsilon_of(phases, delta)


def _seeded(config: Config, seed: int) -> Config:
    return parse_config(config.plain() | {"training": config.training.model_dump() | {"seed": seed}})


def _at(config: Config, target: float) -> Config:
    return parse_config(config.plain() | {"privacy": {"epsilon": target, "delta": config.privacy.delta}})
