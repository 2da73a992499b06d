"""One-run audits of whole runs, with gradient canaries and with mislabelled inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._noise.sources import SeededSource
from quietgrad.accounting import AllocationEvent, GaussianEvent, Phase
from quietgrad.audit import audit_input_canaries, audit_one_run
from quietgrad.audit.bounds import gaussian_epsilon
from quietgrad.audit.composition import louder
from quietgrad.audit.input_canaries import mislabelled
from quietgrad.audit.one_run import gaussian_trade_off
from quietgrad.audit.one_run_report import one_run_report, trade_off
from quietgrad.audit.report import AuditReport
from tests.cases.methods import METHODS
from tests.cases.world import small_net

DELTA = 1e-5


@cache
def one_run(name: str, sigma: float, steps: int = 60) -> AuditReport:
    mechanism = next(case for case in METHODS if case.name == name).build(0.5).with_noise(sigma)
    return audit_one_run(
        small_net(),
        mechanism,
        records=2_000,
        rate=0.3,
        steps=steps,
        delta=DELTA,
        canaries=200,
        seed=0,
        noise_source=SeededSource(1),
        deterministic=True,
    )


@pytest.mark.parametrize("name", ["dp_sgd", pytest.param("random_freeze", marks=pytest.mark.slow)])
def test_gradient_canaries_show_something_and_never_more_than_claimed(name: str) -> None:
    report = one_run(name, 1.0)
    assert report.verdict == "consistent"
    assert 0.5 < report.lower_bound < report.claimed
    assert report.details["trade_off_bound"] > report.details["epsilon_delta_bound"]


def test_more_noise_shows_less() -> None:
    assert one_run("dp_sgd", 4.0).lower_bound < one_run("dp_sgd", 1.0).lower_bound


def test_scores_without_information_show_nothing() -> None:
    rng = np.random.default_rng(0)
    phases = [Phase(event=GaussianEvent(noise_multiplier=1.0), rate=0.1, count=100)]
    for _ in range(4):
        report = one_run_report(
            "noise",
            rng.standard_normal(400),
            rng.random(400) < 0.5,
            phases,
            delta=DELTA,
            confidence=0.999,
            assumptions=(),
        )
        assert report.lower_bound == 0.0


def test_the_trade_off_of_a_gaussian_is_the_gaussian_one() -> None:
    curve = trade_off([Phase(event=GaussianEvent(noise_multiplier=1.0), rate=1.0, count=1)])
    chances = np.array([0.05, 0.3, 0.5, 0.9])
    exact = gaussian_trade_off(1.0)(chances)
    assert np.all(curve(chances) <= exact + 1e-9)  # never more private than the run
    assert np.allclose(curve(chances), exact, rtol=0.02)


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least \d+ canaries for 99.9% confidence"):
        one_run_report(
            "few", np.ones(5), np.ones(5, dtype=bool), [], delta=DELTA, confidence=0.999, assumptions=()
        )


def test_labels_are_wrong() -> None:
    labels = torch.arange(10).repeat(20)
    wrong = mislabelled(labels, 10, np.random.default_rng(0))
    assert bool((wrong != labels).all())
    assert set(wrong.tolist()) == set(range(10))


def memorise(dataset: TensorDataset) -> nn.Module:
    """Plain training of an over-sized model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x, y = dataset.tensors
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def test_input_canaries_refute_a_private_claim_of_a_model_that_memorises() -> None:
    rng = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(600, 20, generator=rng), torch.randint(4, (600,), generator=rng))
    claim = [Phase(event=GaussianEvent(noise_multiplier=4.0), rate=1.0, count=1)]
    report = audit_input_canaries(memorise, data, claim, canaries=400, classes=4, delta=DELTA)
    assert report.claimed == pytest.approx(gaussian_epsilon(0.25, DELTA), rel=0.01)
    assert report.verdict == "violated"
    ignorant = audit_input_canaries(
        lambda _: nn.Linear(20, 4), data, claim, canaries=400, classes=4, delta=DELTA
    )
    assert ignorant.verdict == "consistent"
    assert ignorant.lower_bound == 0.0
    with pytest.raises(ValueError, match="canaries"):
        audit_input_canaries(memorise, data, claim, canaries=1, classes=4, delta=DELTA)


def banded_run(noise: qg.Noise, sigma: float = 1.0, steps: int = 60, **options: Any) -> AuditReport:
    return audit_one_run(
        small_net(),
        replace(qg.methods.dp_sgd(clip=0.5), noise=noise).with_noise(sigma),
        records=2_000,
        steps=steps,
        delta=DELTA,
        canaries=200,
        confidence=0.99,
        seed=0,
        noise_source=SeededSource(1),
        deterministic=True,
        **{"rate": 0.3, "groups": 3, **options},
    )


def test_banded_noise_shows_something_and_no_more_than_claimed() -> None:
    """Canaries take part every three steps; their releases are made white before they are scored."""
    report = banded_run(qg.BandedNoise(coefficients=(64, 40, 25)))
    assert report.verdict == "consistent"
    assert 0.5 < report.lower_bound < report.claimed


@dataclass(frozen=True, kw_only=True)
class Forgetful(qg.BandedNoise):
    """Planted bug: the bands are not in the event, so that a record may take part in every step."""

    def event(self, noise_multiplier: float, step: int) -> GaussianEvent:
        return GaussianEvent(noise_multiplier=noise_multiplier)


@pytest.mark.parametrize("kind", [pytest.param(qg.BandedNoise, marks=pytest.mark.slow), Forgetful])
def test_bands_that_the_event_forgets_are_caught(kind: type[qg.BandedNoise]) -> None:
    """Records take part in every step: twice the μ that independent noise would give, and that is claimed."""
    forgets = kind is Forgetful
    options = {"rate": 1.0, "groups": 1} if forgets else {"rate": 0.25, "groups": 4}
    report = banded_run(kind(coefficients=(64, 50, 40, 30)), 3.0, 12, **options)
    assert report.verdict == ("violated" if forgets else "consistent")
    assert report.lower_bound == report.details["order_statistics_bound"]


def test_scores_that_hang_together_get_no_bound_by_order() -> None:
    """Canaries in a subspace share coordinates: only the bounds that allow for that are used."""
    assert one_run("rgp", 1.0, steps=4).details["order_statistics_bound"] is None


def test_random_allocation_has_no_price_from_below() -> None:
    phase = Phase(event=AllocationEvent(noise_multiplier=1.0, steps=4), rate=1.0, count=1)
    with pytest.raises(ValueError, match="No price from below"):
        louder(phase, 1.0)


@dataclass(frozen=True, kw_only=True)
class QuietBanded(qg.BandedNoise):
    """Planted bug: a tenth of the noise that is accounted."""

    def release(self, total: Any, draw: Any, state: Any) -> Any:
        released, state = super().release(total, draw, state)
        clean = {name: block.double() / draw.divisor for name, block in total.blocks.items()}
        blocks = {
            n: (clean[n] + 0.1 * (b.double() - clean[n])).to(b.dtype) for n, b in released.blocks.items()
        }
        return replace(released, blocks=blocks), state


def test_banded_noise_that_is_too_small_is_caught() -> None:
    report = banded_run(QuietBanded(coefficients=(64, 40, 25)), 4.0, 12)
    assert report.verdict == "violated"
