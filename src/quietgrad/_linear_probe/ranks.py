"""Ranks of a table's numbers: whether they are worth their part of the budget, and their release."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._linear_probe.recipe import WIDEST
from quietgrad._linear_probe.rule import CURVES_SHARE, Settings, ranks_stand_out
from quietgrad._program.program import StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad._program.statistics import Histograms
from quietgrad.features.curves import EDGES, FUNCTIONS, ranks_from_bins
from quietgrad.features.table_rows import FeatureLayout

NAME = "ranks"


def plan_ranks(layout: FeatureLayout, rule: Settings) -> dict[str, StatisticRelease]:
    """Plan histograms of the numbers; nothing where their noise would hide them."""
    numbers = sum(layout.is_number)
    # Beyond WIDEST coordinates only their mean squares would be released, which is worse than numbers as they are.
    is_narrow = len(layout.columns) + numbers * (FUNCTIONS - 1) <= WIDEST
    if not (is_narrow and ranks_stand_out(numbers, rule)):
        return {}
    return {NAME: StatisticRelease(statistic=Histograms(EDGES, numbers), share=CURVES_SHARE)}


def release_ranks(
    layout: FeatureLayout, statistics: Statistics, features: Float[Tensor, "n d"]
) -> Float[Tensor, "m edges"] | None:
    """Release the ranks if the plan has them; a number that is missing is NaN, and counts nowhere."""
    if NAME not in statistics.program.statistics:
        return None
    released = statistics.release(NAME, features[:, layout.numbers])
    return ranks_from_bins(released.blocks["bins"], sum(layout.is_number))


def even_ranks(layout: FeatureLayout) -> Float[Tensor, "m edges"]:
    """Ranks of the right shape, for a plan that is made before any are released."""
    return torch.linspace(0, 1, len(EDGES)).expand(sum(layout.is_number), -1)


def numbers_or_nan(layout: FeatureLayout, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return the features that a schema encoded, with NaN for each number that is missing."""
    values = features.clone()
    for place, flag in enumerate(layout.flags):
        if flag >= 0:
            values[features[:, flag] > 0, place] = torch.nan
    return values
