"""An event from outside: two answers are enough for ε, RDP, subsampling, joint events and ledgers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from quietgrad.accounting import (
    Event,
    GaussianEvent,
    JointEvent,
    Ledger,
    LossPmf,
    Phase,
    delta,
    epsilon,
    event_from_dict,
    event_to_dict,
    gaussian_precision,
    pld,
    register_event,
    split_to_grid,
)
from quietgrad.accounting.base import event_class
from quietgrad.accounting.rdp import rdp
from tests.accounting.settings import DELTA, flat


@register_event("test: randomised response")
@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Event):
    """A bit that is reported truly with probability `truth`."""

    truth: float

    @property
    def atom(self) -> float:
        return math.log(self.truth / (1 - self.truth))

    @property
    def spread(self) -> float:
        return 2 * self.atom * math.sqrt(self.truth * (1 - self.truth))

    def loss(self, step: float) -> LossPmf:
        losses, mass = np.array([-self.atom, self.atom]), np.array([1 - self.truth, self.truth])
        return split_to_grid(losses, mass, step=step, infinity=0.0)


@register_event("test: laplace")
@dataclass(frozen=True, kw_only=True)
class LaplaceEvent(Event):
    """A number of sensitivity 1 with Laplace noise of scale b."""

    scale: float

    @property
    def spread(self) -> float:
        return 1 / self.scale

    def loss(self, step: float) -> LossPmf:
        """P = Lap(1, b) against Q = Lap(0, b): atoms ±1/b at the ends, a density in between, cut into fine cells."""
        ends = np.linspace(0, 1, 1 + max(4, math.ceil(40 / self.scale / step)))
        inner = np.diff(stats.laplace.cdf(ends, loc=1, scale=self.scale))
        mass = np.concatenate([[0.5 * math.exp(-1 / self.scale)], inner, [0.5]])
        # The loss (2x − 1)/b of a cell at its upper end: never below the truth.
        losses = np.concatenate([[-1 / self.scale], (2 * ends[1:] - 1) / self.scale, [1 / self.scale]])
        return split_to_grid(losses, mass, step=step, infinity=0.0)


RESPONSE = RandomisedResponse(truth=0.75)


def subsampled_response(rate: float, steps: int, eps: float) -> float:
    """δ(ε) of `steps` subsampled answers, by enumerating how many were yes; the worse direction."""
    yes = np.arange(steps + 1)
    without = 1 - RESPONSE.truth
    with_it = (1 - rate) * without + rate * RESPONSE.truth
    p, q = stats.binom.pmf(yes, steps, with_it), stats.binom.pmf(yes, steps, without)
    return float(max(np.maximum(p - math.exp(eps) * q, 0).sum(), np.maximum(q - math.exp(eps) * p, 0).sum()))


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 12), (0.1, 100), (0.3, 40)])
def test_randomised_response_is_its_closed_form(rate: float, steps: int) -> None:
    phases = [Phase(event=RESPONSE, rate=rate, count=steps)]
    for eps in (0.0, 0.5, 1.0):
        exact = subsampled_response(rate, steps, eps)
        found = delta(phases, eps)
        assert found >= exact * (1 - 1e-9)
        assert found == pytest.approx(exact, rel=2e-3, abs=1e-12)


def test_one_answer_costs_its_log_odds() -> None:
    phases = [Phase(event=RESPONSE, rate=1.0, count=1)]
    assert epsilon(phases, 1e-9) == pytest.approx(math.log(3), rel=2e-3)
    subsampled = [Phase(event=RESPONSE, rate=0.1, count=1)]
    assert epsilon(subsampled, 1e-9) == pytest.approx(math.log(1.2), rel=1e-2)  # log(1 + q (e^ε − 1))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_laplace_is_its_closed_form(scale: float) -> None:
    phases = [Phase(event=LaplaceEvent(scale=scale), rate=1.0, count=1)]
    for eps in (0.0, 0.2 / scale, 0.7 / scale):
        exact = 1 - math.exp((eps - 1 / scale) / 2)
        assert exact <= delta(phases, eps) <= exact * 1.02


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_rdp_of_an_answer_is_its_closed_form(rate: float) -> None:
    orders, values = rdp([Phase(event=RESPONSE, rate=rate, count=1)])
    q = np.array([RESPONSE.truth, 1 - RESPONSE.truth])
    ratio = (1 - rate) + rate * q[::-1] / q
    for order in (2.0, 5.0, 32.0):
        exact = math.log(float(q @ ratio**order)) / (order - 1)
        found = values[list(orders).index(order)]
        assert exact * (1 - 1e-9) <= found <= exact * 1.001


def test_a_joint_event_with_it_costs_more_and_rdp_stays_above() -> None:
    joint = JointEvent(gaussian=GaussianEvent(noise_multiplier=2.0), selections=(RESPONSE,))
    phases = [Phase(event=joint, rate=0.05, count=50)]
    tight = epsilon(phases, DELTA, accountant="pld")
    assert tight > epsilon(flat(2.0, 0.05, 50), DELTA)
    assert tight > epsilon([Phase(event=RESPONSE, rate=0.05, count=50)], DELTA)
    assert tight < epsilon(phases, DELTA, accountant="rdp")
    assert pld(phases, pessimistic=False).get_epsilon_for_delta(DELTA) < tight


def test_plain_and_joint_phases_mix_in_rdp() -> None:
    joint = JointEvent(gaussian=GaussianEvent(noise_multiplier=2.0), selections=(RESPONSE,))
    phases = [Phase(event=joint, rate=0.05, count=5), *flat(2.0, 0.05, 50)]
    assert epsilon(phases, DELTA, accountant="rdp") > epsilon(phases, DELTA, accountant="pld")


def test_the_gaussian_part_of_each_event() -> None:
    gaussian = GaussianEvent(noise_multiplier=2.0)
    assert gaussian_precision(RESPONSE) == 0
    assert gaussian_precision(gaussian) == 0.25
    assert gaussian_precision(JointEvent(gaussian=gaussian, selections=(RESPONSE,))) == 0.25
    assert gaussian_precision(GaussianEvent(noise_multiplier=0.0)) == math.inf


def test_a_ledger_holds_it(tmp_path: Path) -> None:
    plan = [Phase(event=RESPONSE, rate=0.1, count=3)]
    ledger = Ledger(tmp_path / "ledger.jsonl", plan=plan)
    for step in range(3):
        ledger.record(RESPONSE, 0.1, step=step)
    ledger.close()
    assert Ledger.read(tmp_path / "ledger.jsonl").phases == tuple(plan)


def test_an_unknown_kind_says_what_to_import() -> None:
    with pytest.raises(
        ValueError, match=r"Expected kind .*gaussian.*got 'unheard'\. Import the package that"
    ):
        event_from_dict({"kind": "unheard"})


def test_a_class_without_a_kind_is_refused_and_so_is_a_second_class_of_a_kind() -> None:
    class Louder(GaussianEvent):
        """Registered under no kind: not under that of its base either."""

    with pytest.raises(ValueError, match="Louder is not registered"):
        event_to_dict(Louder(noise_multiplier=1.0))
    with pytest.raises(ValueError, match=r"stands for .*GaussianEvent already"):
        register_event("gaussian")(Louder)
    assert event_class("gaussian") is GaussianEvent
    assert register_event("test: laplace")(LaplaceEvent) is LaplaceEvent
