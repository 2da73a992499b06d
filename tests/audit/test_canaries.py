"""Step canaries: below the claim and close to it for every method; above it for every broken one they can see."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from benchmarks.broken import OneReleaseAccounted, ReusedSeed, Unchecked, half_noise, no_clip, silent_block

from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import SeededSource
from quietgrad.accounting import GaussianEvent, Phase, epsilon
from quietgrad.audit.canaries import audit_mechanism
from quietgrad.audit.composition import shown_epsilon
from quietgrad.audit.report import AuditReport
from tests.cases.methods import FAMILIES, METHODS, MethodCase
from tests.cases.world import small_net

DELTA, RATE, STEPS = 1e-5, 0.05, 300
NOISE = {1.0: 3.39617, 2.0: 1.95, 8.0: 0.856329}
SELECTS = {"gip"}
"""Methods that show only a selection of each release: a canary cannot reach all of μ."""


RANK_LIMITED = {"gep", "gep_groups", "gep_freeze", "biased_gep", "preconditioned_gep"}
"""Few embedding dimensions, few canaries a step, and a basis for each step: fewer scores, so that the test stays short.
(benchmarks.audit has them in full.)"""


def audit(mechanism: Mechanism, seed: int = 0, **options: object) -> AuditReport:
    source = options.pop("noise_source", SeededSource(seed + 1))
    return audit_mechanism(
        small_net(),
        mechanism,
        records=2_000,
        rate=RATE,
        steps=STEPS,
        delta=DELTA,
        seed=seed,
        noise_source=source,
        deterministic=True,
        **options,  # type: ignore[arg-type]
    )


def method(name: str) -> MethodCase:
    return next(case for case in METHODS if case.name == name)


def check_honest(report: AuditReport, name: str, *, shown: float = 0.5) -> None:
    """`shown`: over seeds the bound is 0.57 to 0.87 of the claim for methods whose every canary counts."""
    assert report.verdict == "consistent"
    assert report.reachable is not None
    assert report.lower_bound <= report.claimed
    if name in SELECTS:
        assert 0.3 * report.reachable <= report.lower_bound <= report.reachable
    else:
        assert report.lower_bound >= shown * report.claimed


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=case.name, marks=pytest.mark.slow if case.name in FAMILIES else pytest.mark.nightly
        )
        for case in METHODS
    ],
)
def test_every_method_keeps_its_claim_and_canaries_show_most_of_it(case: MethodCase) -> None:
    scores = 1_300 if case.name in RANK_LIMITED else 2_400
    check_honest(audit(case.build(0.5).with_noise(NOISE[8.0]), canaries=24, scores=scores), case.name)


@pytest.mark.slow
@pytest.mark.parametrize("target", [1.0, 2.0])
@pytest.mark.parametrize("name", ["dp_sgd", "gep_joint", "rgp"])
def test_small_epsilon(name: str, target: float) -> None:
    report = audit(method(name).build(0.5).with_noise(NOISE[target]), canaries=100, scores=9_000)
    assert report.claimed == pytest.approx(target, rel=0.05)
    # A bound from 9,000 scores at ε = 1 is 0.57 to 0.71 of the claim, from one seed to the next.
    check_honest(report, name, shown=0.45)


def test_a_canary_in_one_release_alone_would_show_less() -> None:
    """Why canaries are joint: GEP's releases have half the precision each."""
    phases = (Phase(event=GaussianEvent(noise_multiplier=1.0), rate=RATE, count=STEPS),)
    joint = shown_epsilon(phases, DELTA, 1.0)
    alone = shown_epsilon(phases, DELTA, math.sqrt(0.5))
    assert 0.5 < alone / joint < 0.7
    assert joint <= epsilon(phases, DELTA)
    assert joint > 0.97 * epsilon(phases, DELTA)


BROKEN: dict[str, Callable[[], AuditReport]] = {
    "half the noise": lambda: audit(half_noise(method("dp_sgd").build(0.5).with_noise(3.0)), scores=4_000),
    "no clipping": lambda: audit(no_clip(method("dp_sgd").build(0.5).with_noise(3.0)), scores=4_000),
    "one of GEP's releases accounted": lambda: audit(
        OneReleaseAccounted.of(method("gep_groups").build(0.5).with_noise(1.0)),
        scores=2_000,
        canaries=12,
        privatizer=Unchecked,
    ),
    "no noise on one group": lambda: audit(
        silent_block(method("dp_sgd").build(0.5).with_noise(3.0), "norm.bias"), scores=4_000
    ),
    "reused noise seed": lambda: audit(
        method("dp_sgd").build(0.5).with_noise(3.0), scores=4_000, noise_source=ReusedSeed()
    ),
}


@pytest.mark.parametrize("bug", BROKEN)
def test_broken_on_purpose_is_caught(bug: str) -> None:
    report = BROKEN[bug]()
    assert report.verdict == "violated"
    assert report.lower_bound > 1.2 * report.claimed
    if bug == "no noise on one group":
        assert report.details["loudest_block"] == "norm.bias"
        # The other canaries see nothing: without one per group this bug would go unseen.
        assert report.details["times_claimed_mu"] < 1
    if bug == "reused noise seed":
        assert report.details["noise_reused_in_steps"] is not None


def test_the_same_settings_unbroken_are_not_caught() -> None:
    for name, sigma, scores in (("dp_sgd", 3.0, 4_000), ("gep_groups", 1.0, 1_000)):
        report = audit(method(name).build(0.5).with_noise(sigma), scores=scores)
        assert report.verdict == "consistent"
        assert report.details["noise_reused_in_steps"] is None


def test_too_few_canaries_are_refused_with_the_number_needed() -> None:
    with pytest.raises(ValueError, match=r"at least \d+ canary scores for 99.9% confidence"):
        audit(method("dp_sgd").build(0.5).with_noise(5.0), scores=64)


def test_a_non_private_run_is_called_so() -> None:
    report = audit(method("dp_sgd").build(0.5).with_noise(0.0))
    assert report.verdict == "not private"
    assert report.as_dict()["claimed"] == "inf"
    assert "no noise" in str(report)


def test_the_model_is_left_alone_and_the_report_says_what_it_assumes() -> None:
    model = small_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = audit_mechanism(
        model,
        method("dp_sgd").build(0.5).with_noise(0.8),
        records=2_000,
        rate=RATE,
        steps=50,
        delta=DELTA,
        scores=400,
        confidence=0.9,
        seed=0,
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert "assumes Poisson sampling" in str(report)
    assert report.as_dict()["details"]["scores"] >= 400
