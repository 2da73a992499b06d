"""Attacks with a few shadow models: a record that is easy for every model is no sign of membership.

Offline: each shadow was trained on other records of the same kind, never on those under attack.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int
from numpy import ndarray
from torch import Tensor, nn

Points = Float64[ndarray, " n"]
OnShadows = Float64[ndarray, "s n"]


def confidences(model: nn.Module, inputs: Tensor, labels: Int[Tensor, " n"], *, chunk: int = 512) -> Points:
    """The probability that a classifier gives the true label of each record."""
    with torch.no_grad():
        logits = torch.cat([model(part) for part in inputs.split(chunk)]).double()
    chosen: Points = logits.softmax(1).gather(1, labels.view(-1, 1)).squeeze(1).numpy()
    return chosen


def losses(model: nn.Module, inputs: Tensor, labels: Int[Tensor, " n"], *, chunk: int = 512) -> Points:
    """The cross-entropy of each record."""
    with torch.no_grad():
        parts = [
            F.cross_entropy(model(x), y, reduction="none")
            for x, y in zip(inputs.split(chunk), labels.split(chunk), strict=True)
        ]
    each: Points = torch.cat(parts).double().numpy()
    return each


def rmia(
    target: Points,
    shadows: OnShadows,
    population: Float64[ndarray, " z"],
    population_shadows: Float64[ndarray, "s z"],
    *,
    gamma: float = 1.0,
    offset: float = 0.3,
) -> Points:
    """The scores of offline RMIA (Zarifzadeh, Liu, Shokri 2024): the part of the population that a record beats.

        ratio(x) = Pr(x|θ) / Pr(x),   score(x) = Pr_z[ratio(x) ≥ γ·ratio(z)]

    Args:
        target: confidences of the attacked model on the records under attack; `shadows` those of each shadow.
        population, population_shadows: the same on other records of the same kind.
        gamma: how clearly a record has to beat another.
        offset: a of Pr(x) = ½((1 + a)·mean over shadows + 1 − a), which stands in for shadows that saw x.
    """
    _check_shadows(shadows, population_shadows)
    ratio = target / _prior(shadows, offset)
    other = np.sort(population / _prior(population_shadows, offset))
    beaten = np.searchsorted(other, ratio / gamma, side="right")
    score: Points = beaten / len(other)
    return score


def lira(target: Points, shadows: OnShadows) -> Points:
    """The scores of offline LiRA (Carlini et al. 2022): (logit − the shadows' mean) / their common spread."""
    _check_shadows(shadows, shadows)
    apart = _logit(target) - _logit(shadows).mean(0)
    spread = float(_logit(shadows).std(0, ddof=1).mean())
    score: Points = apart / max(spread, 1e-12)
    return score


def _prior(shadows: OnShadows, offset: float) -> Points:
    prior: Points = np.maximum(((1 + offset) * shadows.mean(0) + 1 - offset) / 2, 1e-12)
    return prior


def _logit(confidence: Float64[ndarray, "*any"]) -> Float64[ndarray, "*any"]:
    clipped = confidence.clip(1e-12, 1 - 1e-12)
    value: Float64[ndarray, "*any"] = np.log(clipped) - np.log1p(-clipped)
    return value


def _check_shadows(*arrays: Float64[ndarray, "s _"]) -> None:
    for shadows in arrays:
        if shadows.ndim != 2 or len(shadows) < 2:
            raise ValueError(
                f"Expected confidences of at least 2 shadow models, one row each, got shape {shadows.shape}. Train 4 "
                "to 8."
            )
