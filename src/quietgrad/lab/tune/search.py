"""Optuna's search on a stand-in: free, resumable, never worse there than the config it starts from."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import quietgrad as qg
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.metrics import accuracy
from quietgrad.lab.run.setup import momentum_of, set_up
from quietgrad.lab.run.task import load_task
from quietgrad.lab.run.train import Run
from quietgrad.lab.tune.search_space import SearchSpace, Trial
from quietgrad.lab.tune.stand_in import public_stand_in, synthetic_stand_in

Study: TypeAlias = Any
"""Of optuna, which is imported where it is used."""

STAND_INS = {"public": public_stand_in, "synthetic": synthetic_stand_in}
SCORES = 10
"""How often a try tells its accuracy, so that a hopeless one is given up."""

Progress = Callable[[int, float], None]
"""(finished tries, best accuracy so far)."""


@dataclass(frozen=True)
class SearchResult:
    """What a search on a stand-in found.

    Args:
        config: the best settings, with how they were found; not yet trained on private data.
        accuracy: of the best try, on the stand-in.
        own_accuracy: of the config it started from, there; None if its settings lie outside the search.
        tries: how many were made, given-up ones included.
    """

    config: Config
    accuracy: float
    own_accuracy: float | None
    tries: int


def search(
    space: SearchSpace,
    on: str,
    tries: int,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress = lambda *_: None,
) -> SearchResult:
    """Search until `tries` were made in all; started again in the same folder, it goes on where it was.

    Args:
        space: what may be chosen.
        on: "public" or "synthetic".
        tries: how many, those of earlier starts included.
        out: folder of the search's journal.
        data_dir: where data sets are looked for first.
        progress: called after each try.
    """
    make_folder(out)
    stand_in = STAND_INS[on](_task(space.base, on, data_dir), space.base.training.seed)
    study = _study(space, on, out)

    def report(study: Study, _: Any) -> None:
        progress(len(study.trials), _best(study))

    left = tries - len([trial for trial in study.trials if trial.state.is_finished()])
    if left > 0:
        study.optimize(
            lambda trial: _score(trial, space, stand_in),
            n_trials=left,
            callbacks=[report],
            catch=(ValueError,),
        )
    if _best(study) < 0:
        raise LabError(
            "No try could be finished. Train the config once to see why; then search in another --out."
        )
    own = [trial.value for trial in _completed(study) if trial.params == space.own()]
    made = len(study.trials)
    best = space.applied(study.best_params, {"on": on, "tries": made})
    return SearchResult(best, study.best_value, own[0] if own else None, made)


def _task(base: Config, on: str, data_dir: Path | None) -> Parts:
    labelled = {"public_labels": True} if on == "public" else {}
    return load_task(
        parse_config(base.plain() | {"data": base.data.model_dump(exclude_none=True) | labelled}),
        data_dir=data_dir,
    )


def _study(space: SearchSpace, on: str, out: Path) -> Study:
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(out / "tries.journal"))
    study: Study = optuna.create_study(
        study_name=f"quietgrad on {on}",
        storage=optuna.storages.JournalStorage(backend),
        load_if_exists=True,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=space.base.training.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=SCORES // 3),
    )
    described = space.base.plain()
    if study.user_attrs.get("base", described) != described:
        raise LabError(f"{out} holds a search that started from another config. Give another --out.")
    study.set_user_attr("base", described)
    if not study.trials and space.own():
        study.enqueue_trial(space.own())
    return study


def _score(trial: Trial, space: SearchSpace, stand_in: Parts) -> float:
    """Accuracy on the stand-in's held-out examples of a run at the config's ε."""
    config = space.applied(space.suggest(trial), {"on": "unstated"})
    setup = set_up(config, parts=stand_in)
    mechanism = build_mechanism(
        config.method, config.privacy, setup.parts, setup.model, setup.batches, momentum_of(config.training)
    )
    every = max(1, setup.batches.steps // SCORES)
    with qg.Privatizer(setup.model, mechanism, setup.batches) as private:
        run = Run(setup, private)
        for batch in setup.batches:
            run.step(batch)
            if private.step % every == 0:
                trial.report(accuracy(setup.evaluated, setup.parts.test), private.step // every)
                if trial.should_prune():
                    raise _optuna().TrialPruned
    return accuracy(setup.evaluated, setup.parts.test)


def _best(study: Study) -> float:
    return max((float(trial.value) for trial in _completed(study)), default=-1.0)


def _completed(study: Study) -> list[Trial]:
    return [trial for trial in study.trials if trial.state.name == "COMPLETE"]


def _optuna() -> Any:
    # Imported by name: a type checker that follows optuna needs minutes.
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError:
        raise LabError(
            "Tuning needs the package optuna. Install it: pip install 'quietgrad[tune]'."
        ) from None
