"""Every method, built for the small world of `tests/cases/world.py`. A new method joins by one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import quietgrad as qg
from quietgrad.mechanism import Mechanism
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


METHODS: list[MethodCase] = [
    MethodCase("dp_sgd", lambda clip: qg.methods.dp_sgd(clip=clip), unbiased=True),
    MethodCase(
        "dp_sgd_per_group",
        lambda clip: qg.methods.dp_sgd(clip=qg.PerGroupClip({"": clip, "head.": 2 * clip})),
        unbiased=True,
    ),
    MethodCase("dp_sgd_automatic", lambda clip: qg.methods.dp_sgd(clip=qg.AutomaticClip(clip))),
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
]


def method_ids(case: MethodCase) -> str:
    return case.name
