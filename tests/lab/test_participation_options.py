"""Bands, cut draws, epochs and adaptive clips from configs and the command line: runs, statements and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import quietgrad as qg
from quietgrad.accounting import AllocationEvent, BandedEvent, TruncatedEvent
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.preview import explain_config
from quietgrad.lab.run.setup import momentum_of, set_up
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.train import train
from tests.lab.test_budget import ask, refused
from tests.lab.tiny import write_config

SCHEMES: dict[str, tuple[list[str], type, str]] = {
    "bands": (["training.bands=4"], BandedEvent, "cyclic Poisson: 4 groups"),
    "at_most": (["training.at_most=40"], TruncatedEvent, "uses at most 40"),
    "once_an_epoch": (["training.once_an_epoch=true"], AllocationEvent, "once in 8 steps"),
}


def run(tmp_path: Path, changes: list[str]) -> Path:
    config = load_config(write_config(tmp_path), changes)
    train(config, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_keeps_to_its_budget_and_says_how_records_take_part(scheme: str, tmp_path: Path) -> None:
    changes, event, words = SCHEMES[scheme]
    out = run(tmp_path, changes)
    plan = Ledger.read(out / "ledger.jsonl").plan
    assert plan is not None
    assert {type(phase.event) for phase in plan} == {event}
    sampling = json.loads((out / "privacy.json").read_text())["sampling"]
    assert words in sampling["said"]
    assert (sampling["expected_batch"], sampling["steps"]) == (pytest.approx(24), 16)
    assert verify(out).problems == ()
    assert json.loads((out / "results.json").read_text())["epsilon"] <= 3.0


def test_the_best_number_of_bands_and_an_adaptive_clip(tmp_path: Path) -> None:
    out = run(tmp_path, ["training.bands=best", "privacy.epsilon=8", "training.epochs=1"])
    assert any(isinstance(phase.event, BandedEvent) for phase in Ledger.read(out / "ledger.jsonl").plan or ())
    (tmp_path / "second").mkdir()
    out = run(tmp_path / "second", ["method.name=adaptive_clip", "method.quantile=0.6"])
    assert json.loads((out / "results.json").read_text())["method"] == "adaptive_clip"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.bands=20"], "at most 8 groups"),
        (["training.bands=4", "method.name=random_freeze"], "RandomMask"),
        (["training.bands=best", "privacy.noise_multiplier=1.0"], "privacy.epsilon"),
        (["training.at_most=10"], "at_most"),
        (["training.bands=2", "training.once_an_epoch=true"], "groups and once_an_epoch"),
        (["training.batch=25", "training.once_an_epoch=true"], "Use 1/8"),
        (["training.bands=2", "method.name=quiet"], "Poisson draws alone"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LabError, match=message):
        train(load_config(write_config(tmp_path), changes), tmp_path / "run")


@pytest.mark.parametrize("changes", [scheme[0] for scheme in SCHEMES.values()], ids=SCHEMES)
def test_explain_takes_each_form_of_participation(changes: list[str], tmp_path: Path) -> None:
    explained = explain_config(load_config(write_config(tmp_path), changes))
    assert explained.epsilon <= 3.0
    shown = [method for method in explained.methods if method.method == "dp_sgd"]
    assert [method.problem for method in shown] == [""]
    assert ("correlated over 4 steps" in explained.noise) == (changes == SCHEMES["bands"][0])


PLAN: list[Any] = ["--examples", 50_000, "--batch", 500, "--steps", 130, "--epsilon", 8]


def test_the_budget_of_bands() -> None:
    plain, banded = ask(*PLAN), ask(*PLAN, "--bands", 8)
    assert banded["noise_multiplier"] > plain["noise_multiplier"]
    assert 0.5 < banded["relative_noise"] < 0.6
    assert plain["relative_noise"] is None


def test_the_best_number_of_bands_of_a_budget() -> None:
    best = ask(*PLAN, "--bands", "best")
    found = {bands: ask(*PLAN, "--bands", bands)["relative_noise"] for bands in (8, 32)}
    assert best["relative_noise"] < min(found.values())
    assert best["bands"] == qg.choose_bands(rate=0.01, steps=130, epsilon=8.0, delta=1e-5).bands


def test_bands_follow_the_momentum_of_a_config(tmp_path: Path) -> None:
    """Momentum smooths the noise over steps, so other coefficients are best; the price is the same."""
    noises, events = set(), set()
    for changes in ([], ["training.momentum=0.9"], ["training.momentum=0.9", "training.optimizer=adam"]):
        config = load_config(write_config(tmp_path), ["training.bands=4", *changes])
        setup = set_up(config)
        args = config.method, config.privacy, setup.parts, setup.model, setup.batches
        mechanism = build_mechanism(*args, momentum_of(config.training))
        noises.add(mechanism.noise)
        events.add(mechanism.event(0))
    assert len(noises) == 2
    assert len(events) == 1


def test_the_budgets_of_cut_draws_and_epochs() -> None:
    plain, cut, once = ask(*PLAN), ask(*PLAN, "--at-most", 520), ask(*PLAN, "--once-an-epoch")
    assert cut["noise_multiplier"] > plain["noise_multiplier"]
    assert once["epsilon"] == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*PLAN, "--bands", 200], "at most 100 groups"),
        (["--rate", 0.01, "--steps", 10, "--epsilon", 1, "--at-most", 9], "--examples"),
        (["--rate", 0.01, "--noise", 1, "--epsilon", 1, "--bands", 2], "Give the rate and the steps"),
        ([*PLAN[:-2], "--noise", 1, "--bands", "best"], "Give the rate, the steps and --epsilon"),
        ([*PLAN, "--bands", "many"], "whole number above 0"),
    ],
)
def test_odd_questions_are_refused(options: list[Any], said: str) -> None:
    assert said in " ".join(refused(*options).split())
