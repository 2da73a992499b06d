"""Canaries that are users: several records each, so that a clip which bounds records alone shows."""

from __future__ import annotations

import numpy as np

from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._sampling.poisson import ReplayedSampler
from quietgrad._sampling.users import Users

RECORDS = 4
"""Of a canary, if a user may contribute so many: a clip per record would let it count four times."""


def empty_draws(
    units: int, steps: int, *, rate: float, most_records: int | None, groups: int = 1
) -> ReplayedSampler:
    """Draws of nobody from so many records, or users if `most_records` says how many records one may contribute."""
    if most_records is None:
        return ReplayedSampler(units, [[]] * steps, rate=rate, groups=groups)
    one_each = Users(np.arange(units), np.arange(units + 1), most_records, "mean")
    return ReplayedSampler(units, [[]] * steps, rate=rate, users=one_each, groups=groups)


def as_users(private: Privatizer, canaries: BlockwiseGrads) -> BlockwiseGrads:
    """What the privatizer makes of canaries' records, each with its canary's gradient; as they are without users."""
    users = private.sampler.users
    if users is None:
        return canaries
    each = min(RECORDS, users.most_records)
    scale = 1.0 / each if users.pooled == "sum" else 1.0
    rows = {n: DenseGrad(scale * r.repeat_interleave(each, 0)) for n, r in canaries.dense().items()}
    return private.pool(BlockwiseGrads(rows, canaries.samples * each), counts=[each] * canaries.samples)
