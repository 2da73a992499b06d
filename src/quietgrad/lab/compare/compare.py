"""A leaderboard at equal (ε, δ): methods × budgets × seeds, between "public only" and "non-private"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import quietgrad as qg
from quietgrad.lab.compare.baselines import non_private, public_only
from quietgrad.lab.compare.comparison import NON_PRIVATE, Comparison, ComparisonRow, row_of, total_epsilon
from quietgrad.lab.compare.parallel import Message, OnMessage, Send, run_parallel
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, number, to_json, write_whole
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.presets import QUIET, with_method
from quietgrad.lab.run.progress import Reporter
from quietgrad.lab.run.setup import Setup
from quietgrad.lab.run.train import train

Curves: TypeAlias = Mapping[str, tuple[Sequence[float], int]]
"""Method → its budgets and its number of seeds."""


REFUSED = "refused"
"""The key of the reason why a run was refused before anything began."""


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
    on_message: OnMessage,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
    baseline: bool = True,
    curves: Curves | None = None,
) -> Comparison:
    """Run what is not there yet, and put everything together in `out/results.json`.

    A method that is refused before its run begins is listed with the reason, and the others go on.

    Raises:
        LabError: no private run fits.
    """
    todo = jobs(base, methods, epsilons, seeds, out, data_dir, baseline=baseline, curves=curves)
    _check_folder(out, todo)
    make_folder(out)
    unfinished = [(place, job) for place, job in enumerate(todo) if not RunFolder(job.out).finished]
    tasks = _together(unfinished)
    found = run_parallel(
        tasks,
        run_jobs,
        lambda _, message: on_message(message["job"], message),
        workers=workers,
    )
    results = {
        place: result
        for task, made in zip(tasks, found, strict=True)
        for (place, _), result in zip(task, made, strict=True)
    }
    refused = {place: result[REFUSED] for place, result in results.items() if REFUSED in result}
    _check_any_private(todo, refused)
    ran = [(place, job) for place, job in enumerate(todo) if place not in refused]
    fitting = [job for _, job in ran]
    read = [run_job(job, partial(on_message, place)) for place, job in ran]  # all finished now: read back
    made = Comparison(
        epsilons=tuple(sorted({job.config.privacy.epsilon for job in fitting if job.config.privacy.epsilon})),
        delta=base.privacy.delta,
        total_epsilon=total_epsilon(folders(fitting), base.privacy.delta),
        private_total_epsilon=total_epsilon(folders(private_jobs(fitting)), base.privacy.delta),
        rows=(*public_only(base, seeds, data_dir), *rows(fitting, read)),
        not_fitting=tuple(dict.fromkeys((todo[place].label, why) for place, why in refused.items())),
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
    *,
    baseline: bool = True,
    curves: Curves | None = None,
) -> list[Job]:
    """All runs; each has a folder of its own, so that a stopped comparison goes on where it was.

    Args:
        baseline: whether ordinary training on the same records is among them; its ε is ∞.
        curves: methods with budgets and numbers of seeds of their own.
    """
    found = []
    cells = [(method, target, seed) for seed in range(seeds) for method in methods for target in epsilons]
    for method, (targets, runs) in (curves or {}).items():
        cells += [(method, target, seed) for seed in range(runs) for target in targets]
    for method, target, seed in dict.fromkeys(cells):
        config = _at(_seeded(with_method(base, method, target), seed), target)
        found.append(
            Job(method, config, out / f"{method.replace(':', '.')}-eps{target:g}-seed{seed}", data_dir)
        )
    for seed in range(seeds if baseline else 0):
        plain = non_private(_seeded(base, seed))
        found.append(Job(NON_PRIVATE, plain, out / f"non_private-seed{seed}", data_dir))
    return found


def _together(numbered: Sequence[tuple[int, Job]]) -> list[list[tuple[int, Job]]]:
    """Runs that share a process: those of the linear probe encode their records once for all."""
    quiet = [item for item in numbered if item[1].label == QUIET]
    return ([quiet] if quiet else []) + [[item] for item in numbered if item[1].label != QUIET]


def run_jobs(numbered: Sequence[tuple[int, Job]], send: Send) -> list[dict[str, Any]]:
    """Several runs, one after the other; each message says which of them it is of."""
    return [run_job(job, partial(_send_as, send, place)) for place, job in numbered]


def _send_as(send: Send, place: int, message: Message) -> None:
    send({**message, "job": place})


class Sending(Reporter):
    """Sends a run's progress to the process that shows it."""

    def __init__(self, send: Send) -> None:
        self._send, self._steps = send, 1

    def start(self, config: Config, private: qg.Privatizer, setup: Setup) -> None:
        self._steps = setup.batches.steps

    def stepped(self, step: int) -> None:
        if step % max(1, self._steps // 50) == 0:
            self._send({"step": step, "steps": self._steps})

    def evaluated(self, point: dict[str, float]) -> None:
        self._send(dict(point))


def run_job(job: Job, send: Send) -> dict[str, Any]:
    """One run, or its result if it is there already; why a method does not fit, if it is refused before it starts."""
    folder = RunFolder(job.out)
    if folder.exists and folder.finished:
        folder.resume(job.config)
    else:
        try:
            train(job.config, job.out, resume=folder.exists, data_dir=job.data_dir, reporter=Sending(send))
        except ValueError as error:
            if folder.exists:  # something was begun, and perhaps released: that is no question of fitting
                raise
            send({"done": True, REFUSED: str(error)})
            return {REFUSED: str(error)}
    result: dict[str, Any] = folder.read("results.json")
    result["epsilon"] = number(result["epsilon"])
    send({"done": True, "accuracy": result["accuracy"], "epsilon": result["epsilon"]})
    return result


def rows(todo: Sequence[Job], results: Sequence[dict[str, Any]]) -> list[ComparisonRow]:
    """One row per method and budget; best first at each budget."""
    grouped: dict[tuple[str, float], list[int]] = {}
    for place, job in enumerate(todo):
        target = job.config.privacy.epsilon
        grouped.setdefault((job.label, math.inf if target is None else target), []).append(place)
    table = [
        row_of(label, target, [todo[n].out.name for n in numbers], [results[n] for n in numbers])
        for (label, target), numbers in grouped.items()
    ]
    return sorted(table, key=lambda row: (row.target, -row.accuracy))


def private_jobs(todo: Sequence[Job]) -> list[Job]:
    """The runs that keep an ε: all but the non-private baseline."""
    return [job for job in todo if job.config.privacy.epsilon is not None]


def folders(todo: Sequence[Job]) -> list[Path]:
    return [job.out for job in todo]


def _check_any_private(todo: Sequence[Job], refused: Mapping[int, str]) -> None:
    """Refuse a comparison of which no private run fits, with the first reason."""
    private = [place for place, job in enumerate(todo) if job.config.privacy.epsilon is not None]
    if private and all(place in refused for place in private):
        raise LabError(refused[private[0]])


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
