"""Who the records belong to: users are drawn, and each contributes a bounded number of records.

Formal guarantee: neighbours are zero-out of one *user*, all of whose records become null records that contribute
nothing. N, the number of users, is public; how many records a user has is not. Which of them a step uses is drawn
afresh, and may depend on anything that the user's own records say: the clip bounds the user whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

Pooled = Literal["mean", "sum"]
"""How the gradients of a user's records become one, before the clip."""

Ids = Sequence[Any] | ndarray | Tensor
"""The user of each record."""


@dataclass(frozen=True, eq=False)
class Users:
    """Hold the records of each user, as rows of one list.

    Args:
        records: record numbers, those of a user one after the other.
        starts: where each user's begin in it, and the end of the last.
        most_records: how many of them a step uses at most.
        pooled: their gradients are averaged, or added.
    """

    records: Int64[ndarray, " n"]
    starts: Int64[ndarray, " users_and_one"]
    most_records: int
    pooled: Pooled

    @classmethod
    def of(cls, ids: Ids, *, records: int, most_records: int | None, pooled: Pooled = "mean") -> Users:
        """Group records by the user of each.

        Raises:
            ValueError: an id is missing, there are more or fewer ids than records, or nothing bounds a contribution.
        """
        if most_records is None or int(most_records) != most_records or most_records < 1:
            raise ValueError(
                f"Expected most_records >= 1 with unit=, got {most_records}. It is how many records of a user one "
                "step uses at most, drawn afresh for each step; 10 is a good start."
            )
        if pooled not in ("mean", "sum"):
            raise ValueError(f'Expected pooled "mean" or "sum", got {pooled!r}.')
        codes = _codes(ids, records)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(codes.max() + 2))
        return cls(order.astype(np.int64), starts.astype(np.int64), int(most_records), pooled)

    @property
    def count(self) -> int:
        """N, the number of users."""
        return len(self.starts) - 1

    def describe(self) -> dict[str, Any]:
        """Say what a ledger keeps and a resumed run must repeat; without the number of records, which is private."""
        return {"people": self.count, "most_records": self.most_records, "pooled": self.pooled}

    def contributions(self, users: Sequence[int], seed: int) -> list[list[int]]:
        """Return the records that each user contributes: all of them, or `most_records` drawn by this seed."""
        return [self._contribution(user, seed) for user in users]

    def _contribution(self, user: int, seed: int) -> list[int]:
        mine = self.records[self.starts[user] : self.starts[user + 1]]
        if len(mine) <= self.most_records:
            return list(mine.tolist())
        # A generator for each user: who else was drawn must not change which records of this one are used.
        generator = np.random.default_rng([seed, user])
        places = generator.choice(len(mine), self.most_records, replace=False, shuffle=False)
        return list(mine[places].tolist())


def _codes(ids: Ids, records: int) -> Int64[ndarray, " n"]:
    """Number users from 0."""
    array = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if array.ndim != 1 or len(array) != records:
        raise ValueError(
            f"Expected unit to name the user of each of the {records} records, got shape {array.shape}. Give one id "
            "per record, in the order of the data set."
        )
    if any(_is_missing(one) for one in array.tolist()):
        raise ValueError(
            "unit names no user for some records. Give every record an id, one of its own if it belongs to nobody "
            "else, or leave it out of the data set."
        )
    if array.dtype != object:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    numbers = {one: number for number, one in enumerate(dict.fromkeys(array.tolist()))}
    return np.array([numbers[one] for one in array.tolist()], dtype=np.int64)


def _is_missing(one: Any) -> bool:
    return one is None or one == "" or bool(one != one)
