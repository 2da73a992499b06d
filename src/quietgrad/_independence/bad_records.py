"""Find the records that spoil others by numbers that are not finite, and put others into their places.

A record whose loss or gradient is NaN or infinite adds zero to the sum, and must change nothing else. Code that keeps
finite records apart may fail that, because zero times NaN is NaN. Worked example, a matrix that brings two records to
their experts, where the second record is NaN:

    [1 0]   [x]     [1·x + 0·NaN]     [NaN]
    [0 1] · [NaN] = [0·x + 1·NaN]  =  [NaN]      the first record is silenced too

The backward of a power of a tensor that all records share does the same. So a micro-batch that holds such numbers is
kept back until there is one without them: records are put one by one into a micro-batch of finite ones, each in its own
place and with the random numbers of that place. Whoever makes it infinite is bad. It may be finite by itself: an
infinite record that is clamped later is, and the zero times infinity of the others is not. The micro-batch is handed
out again with others in the places of the bad ones, and the rows in these places add zero.

Formal guarantee, for loops over `PoissonBatches` whose finite records are apart, and that draw equally many random
numbers for equal shapes: whether a record is bad depends on it alone. A bad one adds at most its own clipped row, and
all other rows are what they are beside finite records, with the same random numbers. The premise is that what is not
finite reaches a loss or a gradient of the micro-batch: code that hides NaN (`where(h > 0, h, 0)`) hides what it did.

Checked by: tests/attacks/test_spread_of_bad_records.py, tests/attacks/test_masks_beside_bad_records.py
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from quietgrad._independence.passes import PassResult, ProbePass

FEW = 4
"""Where at most one in so many records is suspected, mostly each is bad by itself, and is tried alone at once."""

Search: TypeAlias = Generator[ProbePass, PassResult, "BadRecords"]


@dataclass(frozen=True)
class BadRecords:
    """The places of bad records, and the micro-batch with others there; that is None if no record is finite."""

    places: list[int]
    records: list[Any] | None


def find_bad_records(records: Sequence[Any], suspects: Bool[Tensor, " n"]) -> Search:
    """Ask which records make a micro-batch infinite.

    Records are tried in groups, which are halved until they are finite: among n records one bad one is found in about
    2·log₂(n) passes.

    Args:
        records: of the micro-batch.
        suspects: whose losses or gradients are not finite, as far as it is known. The others are tried first.
    """
    places = suspects.nonzero()[:, 0].tolist()
    groups = [[place] for place in places] if len(places) * FEW <= len(records) else [places]
    clear = (~suspects).nonzero()[:, 0].tolist()
    base = None
    if clear:
        base = yield from _try_group(records, clear, [records[clear[0]]] * len(records))
    if base is None:
        groups += [clear] if clear else []
        base = yield from _find_finite(records, clear + places)
    if base is None:
        return BadRecords(list(range(len(records))), None)
    bad = []
    while groups:
        group = groups.pop()
        larger = yield from _try_group(records, group, base)
        if larger is not None:
            base = larger
        elif len(group) == 1:
            bad += group
        else:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return BadRecords(sorted(bad), base)


def _find_finite(
    records: Sequence[Any], places: Sequence[int]
) -> Generator[ProbePass, PassResult, list[Any] | None]:
    """Return a micro-batch of one record, repeated, that is finite; None if there is none.

    A record is asked alone first. If nothing at all is finite, that takes as long as one micro-batch.
    """
    for place in places:
        alone = yield _pass([records[place]])
        if not bool(alone.suspects.any()):
            repeated = [records[place]] * len(records)
            answer = yield _pass(repeated)
            if not bool(answer.suspects.any()):
                return repeated
    return None


def _try_group(
    records: Sequence[Any], group: Sequence[int], base: Sequence[Any]
) -> Generator[ProbePass, PassResult, list[Any] | None]:
    """Put records into their own places among finite ones; return the new micro-batch if it is finite."""
    tried = list(base)
    for place in group:
        tried[place] = records[place]
    answer = yield _pass(tried)
    return None if bool(answer.suspects.any()) else tried


def _pass(records: list[Any]) -> ProbePass:
    everybody = torch.arange(len(records))
    return ProbePass(records, everybody, everybody)


def leave_out(losses: Tensor, rows: Bool[Tensor, " n"]) -> Tensor:
    """Make the losses of some rows NaN, which the clip drops."""
    return losses.masked_fill(rows.to(losses.device).view(-1, *[1] * (losses.dim() - 1)), torch.nan)
