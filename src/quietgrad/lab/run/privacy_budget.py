"""A privacy budget solved for the one quantity that was left out: noise, ε, steps or rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import quietgrad as qg
from quietgrad._noise.bands import mean_square, workload
from quietgrad.accounting.calibrate import (
    ANY_GRID,
    noise_within,
    rate_within,
    smallest_noise,
    steps_within,
)
from quietgrad.accounting.evaluate import Accountant, attack_advantage, members_found
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import BandedEvent, GaussianEvent, Phase
from quietgrad.accounting.planning import plan
from quietgrad.accounting.targets import Target, target_of
from quietgrad.lab.errors import LabError, nearest
from quietgrad.schedules import steps_of

CURVE_POINTS = 24
"""Of the curve of ε over the steps."""

FALSE_POSITIVES = 0.01
"""Where the members found are stated unless another rate is asked for."""

Wanted = Literal["noise_multiplier", "epsilon", "steps", "rate"]
"""What can be solved for."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A solved budget: all quantities, given or found."""

    solved_for: str
    examples: int | None
    batch: float | None
    rate: float
    steps: int
    epochs: float
    delta: float
    noise_multiplier: float
    epsilon: float
    epsilon_rdp: float
    accountant: str
    attack_advantage: float
    false_positives: float
    found: float
    method: str
    release_multipliers: dict[str, float]
    curve: list[tuple[int, float]]
    notes: list[str]
    bands: int = 1
    relative_noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Flat:
    """The same Gaussian event at every step: all that a budget needs to know of a method."""

    noise_multiplier: float
    bands: int = 1

    def event(self, step: int) -> GaussianEvent:
        if self.bands > 1:
            return BandedEvent(noise_multiplier=self.noise_multiplier, bands=self.bands)
        return GaussianEvent(noise_multiplier=self.noise_multiplier)


class Goal(TypedDict):
    """What the solvers aim at."""

    epsilon: float
    delta: float
    accountant: Accountant


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a user gave; one of noise, epsilon, steps and rate is missing."""

    examples: int | None
    batch: float | None
    rate: float | None
    epochs: float | None
    steps: int | None
    delta: float
    epsilon: float | None
    noise: float | None
    accountant: Accountant
    advantage: float | None = None
    false_positives: float | None = None
    found: float | None = None
    bands: int = 1
    at_most: int | None = None
    once_an_epoch: bool = False

    @property
    def plain_draws(self) -> bool:
        """Whether records take part by Poisson draws."""
        return self.bands == 1 and self.at_most is None and not self.once_an_epoch

    def phases(self, noise: float, rate: float, steps: int) -> tuple[Phase, ...]:
        """Return what a run costs, given how records take part."""
        if self.plain_draws:
            return (Phase(event=GaussianEvent(noise_multiplier=noise), rate=rate, count=steps),)
        # Without --examples any number of records will do: only truncation depends on it.
        sampler = qg.PoissonSampler(
            self.examples or 1000 * self.bands,
            rate=rate,
            steps=steps,
            groups=self.bands,
            at_most=self.at_most,
            once_an_epoch=self.once_an_epoch,
        )
        return plan(Flat(noise_multiplier=noise, bands=self.bands), sampler)

    def __post_init__(self) -> None:
        if self.at_most is not None and self.examples is None:
            raise ValueError("Expected --examples beside --at-most, got none.")
        if not self.plain_draws and (self.known_rate is None or self.known_steps is None):
            raise ValueError(
                "--bands, --at-most and --once-an-epoch are solved for the noise or for epsilon. Give the rate and "
                "the steps."
            )
        for name in ("examples", "batch", "epochs", "steps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected --{name} > 0 and finite, got {value}.")
        if self.rate is not None and self.batch is not None:
            raise ValueError("Expected --rate or --batch, got both. Leave one out.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("Expected --steps or --epochs, got both. Leave one out.")
        if self.batch is not None and self.examples is None:
            raise ValueError(
                "Expected --examples beside --batch, got none. Give it, or --rate instead of both."
            )
        if self.known_rate is not None and not 0 < self.known_rate <= 1:
            raise ValueError(
                f"Expected a rate (batch / examples) in (0, 1], got {self.known_rate:g}. Lower the batch size."
            )

    @property
    def known_rate(self) -> float | None:
        if self.batch is not None and self.examples is not None:
            return self.batch / self.examples
        return self.rate

    @property
    def known_steps(self) -> int | None:
        if self.steps is not None or self.epochs is None or self.known_rate is None:
            return self.steps
        return steps_of(self.epochs, self.known_rate)

    @property
    def by_risk(self) -> Target | None:
        """The attack risk that stands in the place of an ε, if any."""
        if self.advantage is None and self.found is None:
            return None
        return target_of(
            epsilon=None,
            delta=None,
            advantage=self.advantage,
            false_positives=self.false_positives if self.found is not None else None,
            found=self.found,
        )

    @property
    def wanted(self) -> Wanted:
        """The one quantity that is missing."""
        if self.by_risk is not None and (self.noise is not None or self.epsilon is not None):
            raise ValueError(
                "Expected --advantage, or --found and --at-false-positives, without --noise and --epsilon: the noise "
                "is solved for. Leave them out."
            )
        given = {
            "noise_multiplier": self.noise,
            "epsilon": self.epsilon if self.by_risk is None else self.by_risk.most,
            "steps": self.known_steps,
            "rate": self.known_rate,
        }
        missing = [name for name, value in given.items() if value is None]
        if missing == ["steps", "rate"] and self.epochs is not None:
            raise ValueError(
                "Expected --steps when the rate is wanted, got --epochs, which depends on the rate."
            )
        for name in get_args(Wanted):
            if missing == [name]:
                return name  # type: ignore[no-any-return]
        got = ", ".join(missing) or "none"
        raise ValueError(
            "Expected exactly one of --noise, --epsilon, --steps/--epochs and --batch/--rate to be left out, the one "
            f"to solve for; missing: {got}."
        )


def solve(question: Question, method: str, shares: dict[str, float]) -> Budget:
    """Find the one quantity that was left out."""
    wanted, rate, steps, noise = question.wanted, question.known_rate, question.known_steps, question.noise
    goal = Goal(epsilon=question.epsilon or 0.0, delta=question.delta, accountant=question.accountant)
    if wanted == "rate":
        rate = rate_within(Flat(noise_multiplier=noise or 0.0), steps or 0, **goal)
    elif wanted == "steps":
        steps = steps_within(Flat(noise_multiplier=noise or 0.0), rate or 0.0, **goal)
    assert rate is not None, "known or solved for"
    assert steps is not None, "known or solved for"
    if wanted == "noise_multiplier":
        if question.by_risk is not None:
            noise = noise_within(lambda value: question.phases(value, rate, steps), question.by_risk)
        else:
            noise = smallest_noise(lambda value: question.phases(value, rate, steps), **goal)
    assert noise is not None, "known or solved for"
    return _answer(question, wanted, rate, steps, noise, method, shares)


def release_shares(method: str, split: str) -> dict[str, float]:
    """Return the share of the step's budget that each release of a batch gets."""
    name = method.replace("-", "_")
    if name == "gip":
        raise ValueError(
            "Expected a method whose releases are Gaussian, got --method gip: its selection's price depends on the "
            "model's size. Calibrate it in Python with qg.calibrate(qg.methods.gip(...), batches, ...)."
        )
    if name == "gep":
        share = _share(split)
        return {"embedding": share, "residual": 1 - share}
    if name not in qg.methods.__all__:
        known = ", ".join(qg.methods.__all__)
        raise LabError(f"Unknown --method {method!r}{nearest(name, qg.methods.__all__)}. Known: {known}.")
    return {"gradient": 1.0}


def _answer(
    question: Question,
    wanted: str,
    rate: float,
    steps: int,
    noise: float,
    method: str,
    shares: dict[str, float],
) -> Budget:
    runs = question.phases(noise, rate, steps)
    examples, false_positives = question.examples, question.false_positives or FALSE_POSITIVES
    return Budget(
        solved_for=wanted,
        examples=examples,
        batch=question.batch if question.batch is not None else examples and rate * examples,
        rate=rate,
        steps=steps,
        epochs=steps * rate,
        delta=question.delta,
        noise_multiplier=noise,
        epsilon=epsilon_of(runs, question.delta, accountant=question.accountant),
        epsilon_rdp=epsilon_of(runs, question.delta, accountant="rdp"),
        accountant=question.accountant,
        attack_advantage=attack_advantage(runs),
        false_positives=false_positives,
        found=members_found(runs, false_positives),
        method=method,
        release_multipliers={name: noise / math.sqrt(share) for name, share in shares.items()},
        curve=_curve(noise, rate, steps, question),
        notes=_notes(question, noise),
        bands=question.bands,
        relative_noise=_relative_noise(question, rate, steps, noise),
    )


def _relative_noise(question: Question, rate: float, steps: int, noise: float) -> float | None:
    """Noise of the summed updates relative to DP-SGD at the same ε; None with one band."""
    if question.bands == 1 or noise == 0:
        return None
    within = epsilon_of(question.phases(noise, rate, steps), question.delta, accountant=question.accountant)
    plain = smallest_noise(
        lambda value: (Phase(event=GaussianEvent(noise_multiplier=value), rate=rate, count=steps),),
        epsilon=within,
        delta=question.delta,
        accountant=question.accountant,
    )
    sums = workload(steps)
    banded = qg.BandedNoise.optimised(question.bands, steps).coefficients
    return noise / plain * math.sqrt(mean_square(banded, sums) / mean_square([1.0], sums))


def _curve(noise: float, rate: float, steps: int, question: Question) -> list[tuple[int, float]]:
    """Epsilon after a part of the steps, on the coarse grid that a picture needs."""
    counts = sorted({max(1, round(steps * i / CURVE_POINTS)) for i in range(1, CURVE_POINTS + 1)})
    accountant = question.accountant
    return [
        (
            n,
            epsilon_of(
                question.phases(noise, rate, n), question.delta, tolerance=ANY_GRID, accountant=accountant
            ),
        )
        for n in counts
    ]


def _notes(question: Question, noise: float) -> list[str]:
    notes = [
        "Poisson sampling of every step and the full number of steps are assumed; a shuffled loader costs more."
        if not question.once_an_epoch
        else "each record is allocated to a step on its own; a shuffled loader has batches of one size and costs more."
    ]
    if question.bands > 1:
        notes.append(
            f"records are in {question.bands} groups, which take turns: PoissonBatches(groups={question.bands})."
        )
    if noise == 0:
        notes.append("without noise nothing is protected: epsilon is infinite.")
    if question.examples is not None and question.delta * question.examples >= 1:
        notes.append(
            f"delta={question.delta:g} is not below 1/examples: it would allow publishing whole records."
        )
    return notes


def _share(split: str) -> float:
    if split == "paper":
        return 0.5
    try:
        share = float(split)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise ValueError(
            f"Expected --split paper or a number in (0, 1), got {split!r}. "
            "The energy split depends on the model: quietgrad.methods.gep.energy_split computes its number."
        )
    return share
