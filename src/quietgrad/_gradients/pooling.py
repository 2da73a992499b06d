"""Rows that belong together: the gradients of a person's records become one, ḡ = w·Σ_j g_j, before anything is clipped.

Formal guarantee: row p of what is pooled depends on the records of person p alone, to the last bit. Whatever is not
finite among them makes that row not finite, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Shaped
from numpy import ndarray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pooling:
    """People whose records lie one after the other.

    Args:
        counts: the number of rows of each person, at least 1.
        weights: w of each person: one over the number of records, or 1 for sums.
        first: the row that the first person begins with; rows before it, and behind the last, belong to nobody here.
    """

    counts: Int64[ndarray, " people"]
    weights: Float64[ndarray, " people"]
    first: int = 0

    @property
    def users(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> slice:
        """Those of all people."""
        return slice(self.first, self.first + int(self.counts.sum()))

    def keeps(self, samples: int) -> bool:
        """Whether every row is a person of its own already: then there is nothing to do."""
        return self.users == samples and self.first == 0 and self._is_plain

    @cached_property
    def owners(self) -> Int64[Tensor, " rows"]:
        """The person of each of `rows`."""
        return torch.from_numpy(np.repeat(np.arange(self.users), self.counts))

    def added(self, rows: Float[Tensor, "n *shape"]) -> Float[Tensor, "people *shape"]:
        """w·Σ_j of each person's rows."""
        mine = self.weighted(rows)
        if len(mine) == self.users:
            return mine
        total = mine.new_zeros(self.users, *mine.shape[1:])
        return total.index_add_(0, self.owners.to(mine.device), mine)

    def weighted(self, rows: Float[Tensor, "n *shape"]) -> Float[Tensor, "rows *shape"]:
        """Each person's rows times its weight."""
        mine = rows[self.rows]
        if self._is_plain:
            return mine
        return mine * self.row_weights.to(mine).view(-1, *[1] * (mine.dim() - 1))

    @cached_property
    def row_weights(self) -> Float64[Tensor, " rows"]:
        """w of each of `rows`."""
        return torch.from_numpy(np.repeat(self.weights, self.counts))

    def side_by_side(self, mine: Shaped[Tensor, "rows t *rest"]) -> Shaped[Tensor, "people t2 *rest"]:
        """A person's rows as positions of one sample; who has fewer than others gets zeros, which add nothing."""
        most = int(self.counts.max(initial=1))
        if len(mine) == self.users * most:
            return mine.reshape(self.users, most * mine.shape[1], *mine.shape[2:])
        padded = mine.new_zeros(self.users * most, *mine.shape[1:])
        padded[self._places(most).to(mine.device)] = mine
        return padded.reshape(self.users, most * mine.shape[1], *mine.shape[2:])

    def _places(self, most: int) -> Int64[Tensor, " rows"]:
        """Where each of `rows` goes if every person has room for `most`."""
        begins = np.arange(self.users) * most - (np.cumsum(self.counts) - self.counts)
        return torch.from_numpy(np.repeat(begins, self.counts) + np.arange(self.counts.sum()))

    @property
    def _is_plain(self) -> bool:
        return bool((self.weights == 1.0).all())
