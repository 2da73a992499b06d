"""Which method to try first on a config, and what each method costs in bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quietgrad.lab.run.presets import QUIET

NEXT = "preconditioned"
PLAIN = "dp_sgd"

BIAS = {
    QUIET: "features are fixed",
    "dp_sgd": "clip only",
    "gep": "clip only",
    "biased_gep": "drops the residual",
    "rgp": "drops what is not of low rank",
    "rgp_random": "drops what is not of low rank",
    "dp_power_sgd": "drops what is not of low rank",
    "pdp_sgd": "drops part of the rest",
    "rpdp_sgd": "drops the rest",
    "random_freeze": "a random part each step",
    "ranked_freeze": "drops coordinates that are small",
    "posterior_freeze": "a random part each step",
    "gip": "drops coordinates that are small",
    "random_k": "a random part each step",
    "top_groups": "drops groups that are small",
    "preconditioned": "clip only",
    "adaptive_clip": "clip only",
    "datalens": "keeps signs only",
}
"""What a method changes in the gradient beside noise, in a few words."""


class Costed(Protocol):
    """A method with its noise, or with the reason why it cannot be used."""

    @property
    def method(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def noise_to_signal(self) -> float: ...


def recommend(config: str, methods: Sequence[Costed]) -> str:
    """Return what to try first and next, and why.

    Args:
        config: how the user names the config.
        methods: all that were looked at.
    """
    usable = {method.method: method for method in methods if not method.problem}
    order = [name for name in (QUIET, NEXT, PLAIN) if name in usable]
    said = []
    if QUIET in usable:
        ratio = usable[QUIET].noise_to_signal
        against = f" (DP-SGD: {usable[PLAIN].noise_to_signal:.2g})" if PLAIN in usable else ""
        said.append(
            f"Try the private linear probe first (--set method.name={QUIET}): it trains in seconds, and the noise of a "
            f"step is {ratio:.2g} of its largest signal{against}."
        )
    else:
        problem = next((method.problem for method in methods if method.method == QUIET), "")
        said.append(f"The private linear probe does not fit here: {problem or 'it was not looked at.'}")
    if NEXT in usable:
        then = "Then try" if QUIET in usable else "Try"
        said.append(
            f"{then} preconditioned DP-SGD (--set method.name={NEXT}): it scales layer inputs, so that directions with "
            "small inputs are learned too."
        )
    if order:
        said.append(f"To compare them at equal ε: quietgrad compare {config} --methods {','.join(order)}")
    return "\n".join(said)
