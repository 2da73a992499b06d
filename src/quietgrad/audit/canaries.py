"""The step-canary audit: a lower bound on each step's μ and, through the composition, on ε of the run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._sampling.poisson import ReplayedSampler
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.events import Phase
from quietgrad.accounting.planning import plan
from quietgrad.audit.bounds import scores_needed
from quietgrad.audit.composition import shown_epsilon
from quietgrad.audit.correlation import NoiseCorrelation, compare_noise
from quietgrad.audit.report import AuditReport
from quietgrad.audit.scores import Scores
from quietgrad.audit.step_canaries import StepCanaries, StepScores
from quietgrad.audit.user_canaries import empty_draws

CONFIDENCE = 0.999
"""High, so that a table of many audits gives no false alarm."""

GOAL = 0.85
"""The share of the claimed μ that the default number of scores is meant to show."""

USUAL = 4_000
"""Scores that are made even where fewer would do: they are cheap, and ε is steep in μ where ε is large."""

LEAST = 0.25
"""An audit that could not even show this share is refused."""

Progress = Callable[[int, int], None]

ASSUMPTIONS = (
    "Poisson sampling at the stated rate and the composition of all planned steps (neighbouring runs test these)",
    "an attacker who sees every release and knows all other records",
    "noise of one distribution, Gaussian or lighter-tailed, along the canaries",
)


def audit_mechanism(
    model: nn.Module,
    mechanism: Mechanism,
    *,
    records: int,
    rate: float,
    steps: int,
    delta: float,
    canaries: int = 16,
    scores: int | None = None,
    audited_steps: int | None = None,
    confidence: float = CONFIDENCE,
    learning_rate: float = 0.01,
    privatizer: Callable[..., Privatizer] = Privatizer,
    seed: int | None = None,
    progress: Progress | None = None,
    most_records: int | None = None,
    claimed: Sequence[Phase] | None = None,
    **options: Any,
) -> AuditReport:
    """Attack the releases of a mechanism on a model with gradient canaries.

    No private data is needed: an attacker who knows the other records subtracts what they add. A copy of the model is
    moved by what is released, so that representations which learn from releases do.

    Args:
        records, rate, steps, delta: of the run that is claimed; users in the place of records, given `most_records`.
        canaries: M per step at least; fewer where a release has fewer dimensions.
        scores: how many canaries in all; enough to show 85% of the claimed μ if left out.
        audited_steps: steps in which they are inserted, at most `steps`; all if left out. Few steps get more canaries
            each, and the steps are made several times if that is not enough.
        learning_rate: of the copy.
        privatizer: what makes the releases; a subclass of Privatizer can be audited too.
        seed: of the canaries and of public randomness (the noise is the privatizer's).
        progress: called with (scores made, scores wanted).
        most_records: where users are protected, how many records of a user a step uses; canaries are then users.
        claimed: what the run costs; plain Poisson draws if left out.
        options: for the privatizer.

    Returns:
        the lower bound on ε beside the claim.

    Raises:
        ValueError: so few scores could not show anything at that confidence.
    """
    sigma = mechanism.multiplier(0)
    if sigma == 0:
        return _non_private(delta, confidence)
    alpha = 1 - confidence
    wanted = scores or max(USUAL, scores_needed(1 / sigma, alpha=alpha / 2, share=GOAL))
    _check_enough(sigma, wanted, confidence)
    count = min(audited_steps or steps, steps)
    made: list[StepScores] = []
    multipliers: list[float] = []
    done = 0
    while done < wanted:
        per_step = max(canaries, math.ceil((wanted - done) / count))
        sampler = empty_draws(records, steps, rate=rate, most_records=most_records)
        own = copy.deepcopy(model)
        with privatizer(own, mechanism, sampler, research=True, public_seed=seed, **options) as private:
            run = canary_steps(private, sampler, canaries=per_step, learning_rate=learning_rate, seed=seed)
            for step, result in zip(range(count), run, strict=False):
                made.append(result)
                multipliers.append(mechanism.multiplier(step))
                done += len(result.scores)
                if progress is not None:
                    progress(min(done, wanted), wanted)
                if done >= wanted:
                    break
        seed = None if seed is None else seed + 1
    phases = plan(mechanism, rate, steps) if claimed is None else claimed
    return _report(made, multipliers, phases, delta, confidence)


def canary_steps(
    private: Privatizer, sampler: ReplayedSampler, *, canaries: int, learning_rate: float, seed: int | None
) -> Iterator[StepScores]:
    """The scores of one step after the other on empty batches, the model moved along."""
    audit = StepCanaries(private, canaries=canaries, seed=seed)
    for _ in sampler:
        yield audit.release()
        move_along(private, learning_rate)


def move_along(private: Privatizer, learning_rate: float) -> None:
    """A plain step along what was released."""
    with torch.no_grad():
        for p in private.parameters.values():
            assert p.grad is not None
            p.sub_(learning_rate * p.grad)


def _report(
    steps: Sequence[StepScores],
    multipliers: Sequence[float],
    claimed: Sequence[Phase],
    delta: float,
    confidence: float,
) -> AuditReport:
    scores = Scores.of(steps, multipliers)
    groups = sorted({group for labels in scores.groups for group in labels})
    # Half of alpha for all scores at once; the rest is shared by the groups, the threshold attack and noise reuse.
    alpha = (1 - confidence) / 2
    rest = alpha / (len(groups) + 2)
    overall, by_threshold = scores.measure(alpha), scores.measure_by_threshold(rest)
    by_group = {group: scores.of_group(group).measure(rest) for group in groups}
    reuse = compare_noise([step.noise for step in steps], alpha=rest)
    loudest = max(by_group, key=lambda group: by_group[group].times)
    times = max(overall.times, by_threshold.times, by_group[loudest].times)
    return AuditReport(
        attack="step canaries",
        claimed=epsilon(claimed, delta),
        delta=delta,
        lower_bound=math.inf if reuse.reused else shown_epsilon(claimed, delta, times),
        confidence=confidence,
        reachable=shown_epsilon(claimed, delta, scores.hit),
        assumptions=ASSUMPTIONS,
        details={
            "steps": len(steps),
            "canaries_per_step": len(steps[0].scores),
            "scores": overall.scores,
            "times_claimed_mu": overall.times,
            "times_claimed_mu_by_threshold": by_threshold.times,
            "canary_hits_share_of_mu": scores.hit,
            "loudest_release": loudest[0],
            "loudest_block": loudest[1],
            "loudest_times_claimed_mu": by_group[loudest].times,
            **_reuse_details(reuse),
        },
    )


def _reuse_details(reuse: NoiseCorrelation) -> dict[str, Any]:
    return {
        "noise_reused_in_steps": list(reuse.steps) if reuse.reused else None,
        "largest_noise_correlation": abs(reuse.correlation),
        "noise_correlation_limit": reuse.limit,
    }


def _check_enough(sigma: float, scores: int, confidence: float) -> None:
    needed = scores_needed(1 / sigma, alpha=(1 - confidence) / 2, share=LEAST)
    if scores < needed:
        raise ValueError(
            f"Expected at least {needed} canary scores for {confidence:.1%} confidence at noise_multiplier "
            f"{sigma:.3g}, got {scores}: the audit could not show anything. Pass a larger `scores` or a lower "
            "`confidence`."
        )


def _non_private(delta: float, confidence: float) -> AuditReport:
    return AuditReport(
        attack="step canaries",
        claimed=math.inf,
        delta=delta,
        lower_bound=math.inf,
        confidence=confidence,
        assumptions=("nothing: without noise every canary is read off exactly",),
    )
