"""Find the records that are not finite by themselves, where numbers of a micro-batch are not finite.

A record whose loss or gradient is NaN or infinite adds zero to the sum, and must change nothing else. Code that keeps
finite records apart may fail that, because zero times NaN is NaN. Worked example, a matrix that brings two records to
their experts, where the second record is NaN:

    [1 0]   [x]     [1·x + 0·NaN]     [NaN]
    [0 1] · [NaN] = [0·x + 1·NaN]  =  [NaN]      the first record is silenced too

The backward of a power of a tensor that all records share does the same. So a micro-batch that holds such numbers is
kept back, and its records are asked about without each other. Those that are not finite by themselves are replaced, the
micro-batch is handed out again without any such number, and the rows in their places add zero.

Formal guarantee, for loops over `PoissonBatches` whose records are otherwise apart: a record that is not finite adds
zero, and every other row is what it is beside a finite record.

Checked by: tests/attacks/test_spread_of_bad_records.py
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from quietgrad._independence.passes import PassResult, ProbePass

FEW = 4
"""Where at most one in so many records is suspected, mostly each is bad by itself, and is asked alone at once."""


def find_bad_records(
    records: Sequence[Any], suspects: Bool[Tensor, " n"]
) -> Generator[ProbePass, PassResult, list[int]]:
    """Ask which of the suspects are not finite without the others; return their places.

    Others are cleared in groups, which are halved until nothing in them is broken: among n records one bad one is found
    in about 2·log₂(n) passes, and all of them take as long as log₂(n) passes of the micro-batch.
    """
    places = suspects.nonzero()[:, 0].tolist()
    groups = [[place] for place in places] if len(places) * FEW <= len(records) else [places]
    bad = []
    while groups:
        group = groups.pop()
        chosen = torch.tensor(group)
        answer = yield ProbePass([records[place] for place in group], chosen, torch.arange(len(group)))
        if not bool(answer.suspects.any()):
            continue
        if len(group) == 1:
            bad += group
        else:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return sorted(bad)


def replace_bad_records(records: Sequence[Any], bad: Sequence[int]) -> list[Any]:
    """Put a record that is finite into the place of each that is not; at least one has to be."""
    good = [place for place in range(len(records)) if place not in set(bad)]
    return [records[good[i % len(good)] if i in set(bad) else i] for i in range(len(records))]


def leave_out(losses: Tensor, rows: Bool[Tensor, " n"]) -> Tensor:
    """Make the losses of some rows NaN, which the clip drops."""
    return losses.masked_fill(rows.to(losses.device).view(-1, *[1] * (losses.dim() - 1)), torch.nan)
