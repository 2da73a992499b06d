"""Every method, built for the small world of `tests/cases/world.py`. A new method joins by one line.

Laws 0 and 2 run on every method. Elsewhere `make test` runs one method of each representation family, because the
methods of a family differ in nothing but how they choose a space; `make test-all` runs the others there too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import pytest

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._representations.low_rank.low_rank import LowRank
from quietgrad._representations.masks.mask import RandomMask
from quietgrad.schedules import Piecewise
from tests.cases.world import public_losses


@dataclass(frozen=True)
class MethodCase:
    """A method for the laws.

    Args:
        name: shown in the test's id.
        build: the mechanism with the given clip bound on its (first) release; not calibrated.
        unbiased: with σ=0 and a huge clip it returns the mean gradient exactly.
    """

    name: str
    build: Callable[[float], Mechanism]
    unbiased: bool = False


@cache
def _gip(clip: float) -> Mechanism:
    """Built once a clip: θ is solved from the budget."""
    plan = SimpleNamespace(rate=0.25, steps=120)
    return qg.methods.gip(371, plan, keep=0.3, group_size=64, clip=clip).for_budget(
        plan, epsilon=4.0, delta=1e-5
    )


METHODS: list[MethodCase] = [
    MethodCase("dp_sgd", lambda clip: qg.methods.dp_sgd(clip=clip), unbiased=True),
    MethodCase(
        "dp_sgd_per_group",
        lambda clip: qg.methods.dp_sgd(clip=qg.PerGroupClip({"": clip, "head.": 2 * clip})),
        unbiased=True,
    ),
    MethodCase("dp_sgd_automatic", lambda clip: qg.methods.dp_sgd(clip=qg.AutomaticClip(clip))),
    MethodCase("adaptive_clip", lambda clip: qg.methods.adaptive_clip(clip=clip, share=0.1), unbiased=True),
    MethodCase(
        "adaptive_clip_groups",
        lambda clip: qg.methods.adaptive_clip(clip=clip, groups=("", "head."), quantile=0.8),
        unbiased=True,
    ),
    MethodCase("rgp", lambda clip: qg.methods.rgp(rank=1, clip=clip, warmup_steps=1)),
    MethodCase("rgp_paper", lambda clip: qg.methods.rgp(rank=1, clip=clip, release="paper")),
    MethodCase("rgp_left", lambda clip: qg.methods.rgp(rank=1, clip=clip, release="left")),
    MethodCase(
        "rgp_random",
        lambda clip: qg.methods.rgp_random(rank=2, clip=clip, matrices=("conv.*", "hidden.weight")),
    ),
    MethodCase("dp_power_sgd", lambda clip: qg.methods.dp_power_sgd(rank=1, clip=clip)),
    MethodCase(
        "dp_power_sgd_feedback", lambda clip: qg.methods.dp_power_sgd(rank=1, clip=clip, error_feedback=True)
    ),
    MethodCase(
        "gep",
        lambda clip: qg.methods.gep(public_losses, rank=6, clip=clip, residual_clip=clip / 2),
        unbiased=True,
    ),
    MethodCase(
        "gep_groups",
        lambda clip: qg.methods.gep(
            public_losses,
            rank=12,
            clip=clip,
            residual_clip=clip,
            split=0.3,
            groups="modules",
            refresh_every=2,
        ),
        unbiased=True,
    ),
    MethodCase(
        "gep_joint",
        lambda clip: qg.methods.gep(
            public_losses, rank=6, clip=clip, residual_clip=clip, joint=True, groups=2
        ),
        unbiased=True,
    ),
    MethodCase("biased_gep", lambda clip: qg.methods.biased_gep(public_losses, rank=6, clip=clip, groups=3)),
    MethodCase("pdp_sgd", lambda clip: qg.methods.pdp_sgd(public_losses, rank=6, clip=clip)),
    MethodCase(
        "rpdp_sgd", lambda clip: qg.methods.rpdp_sgd(rank=20, clip=clip, refresh_every=3, strength=0.9)
    ),
    MethodCase("random_freeze", lambda clip: qg.methods.random_freeze(freeze=0.6, clip=clip)),
    MethodCase(
        "random_freeze_per_step", lambda clip: qg.methods.random_freeze(freeze=0.9, clip=clip, redraw="step")
    ),
    MethodCase(
        "ranked_freeze", lambda clip: qg.methods.ranked_freeze(freeze=Piecewise((0.0, 0.5), (1,)), clip=clip)
    ),
    MethodCase("posterior_freeze", lambda clip: qg.methods.posterior_freeze(freeze=0.5, clip=clip)),
    MethodCase("random_k", lambda clip: qg.methods.random_k(keep=0.5, clip=clip)),
    MethodCase("gip", _gip),
    MethodCase("top_groups", lambda clip: qg.methods.top_groups(freeze=0.5, clip=clip, redraw="step")),
    MethodCase(
        "top_groups_paid",
        lambda clip: qg.methods.top_groups(freeze=0.7, group_by=7, clip=clip, paid_share=0.1),
    ),
    MethodCase("datalens", lambda clip: qg.methods.datalens(keep=0.4, clip=clip)),
    MethodCase("datalens_values", lambda clip: qg.methods.datalens(keep=0.2, sign=False, clip=clip)),
    MethodCase("preconditioned", lambda clip: qg.methods.preconditioned(public_losses, clip=clip)),
    MethodCase(
        "preconditioned_both_sides",
        lambda clip: qg.methods.preconditioned(
            public_losses, clip=clip, sides="both", power=0.25, damping=0.1, refresh_every=2
        ),
    ),
    MethodCase(
        "preconditioned_freeze",
        lambda clip: (
            qg.methods.random_freeze(freeze=0.4, clip=clip) @ qg.Preconditioned(probes=public_losses)
        ),
    ),
    MethodCase(
        "preconditioned_gep",
        lambda clip: (
            qg.methods.gep(public_losses, rank=6, clip=clip, residual_clip=clip / 2)
            @ qg.Preconditioned(probes=public_losses)
        ),
    ),
    MethodCase(
        "preconditioned_coordinates",
        lambda clip: (
            qg.methods.dp_sgd(clip=clip)
            @ (qg.Preconditioned(probes=public_losses) @ qg.Subspace(public_losses=public_losses, rank=6))
        ),
    ),
    MethodCase(
        "preconditioned_rgp",
        lambda clip: qg.methods.rgp(rank=1, clip=clip) @ qg.Preconditioned(probes=public_losses),
    ),
    MethodCase(
        "gep_freeze",
        lambda clip: qg.methods.gep(public_losses, rank=4, clip=clip, residual_clip=clip) @ RandomMask(0.5),
    ),
    MethodCase(
        "pdp_sgd_freeze", lambda clip: qg.methods.pdp_sgd(public_losses, rank=6, clip=clip) @ RandomMask(0.5)
    ),
    MethodCase("rgp_freeze", lambda clip: qg.methods.random_freeze(freeze=0.4, clip=clip) @ LowRank(rank=1)),
]


def method_ids(case: MethodCase) -> str:
    return case.name


FAMILIES = {
    "dp_sgd": "the gradient itself",
    "dp_sgd_per_group": "several clips",
    "adaptive_clip": "a clip that follows a count",
    "rgp": "carriers of low rank, with a warm-up",
    "dp_power_sgd": "two releases in one step, the second in a space of the first",
    "gep": "a public subspace and its residual",
    "random_freeze_per_step": "a mask",
    "gip": "a private selection with an event of its own",
    "top_groups": "a mask from past releases",
    "preconditioned": "a scaling that is undone by no decoder, but applied once more",
    "datalens": "the largest coordinates of each sample",
    "gep_freeze": "two representations, one after the other",
}
"""One method of each representation family, and what its family is."""

assert FAMILIES.keys() <= {case.name for case in METHODS}

BY_FAMILY = [
    pytest.param(case, id=case.name, marks=() if case.name in FAMILIES else pytest.mark.slow)
    for case in METHODS
]
"""Every method as an argument of `parametrize`: `slow` where another one stands for its family."""
