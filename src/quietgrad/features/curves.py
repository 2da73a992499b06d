"""Numbers of a table as cosines of their ranks, so that a linear head can bend.

A column's ranks come from its released distribution function. Equal ranks are equally many records, so a heavy tail
takes no more room than what lies beside it. On ranks r in [0, 1] the block of a column is

    √(1 − v)·w_k cos(πkr),  k = 1 … 6,  w_k = c/k,  Σ w_k² = 1,   and  √v·x

Weights that fall with k let the head prefer functions that bend little, where noise hides what bends much. The number x
itself tells values apart that lie far out in a tail, where their ranks hardly differ.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

COSINES = 6
"""Functions of a column: five and eight were within half a point on the tables that the rule was made on."""

FUNCTIONS = COSINES + 1
"""The cosines, and the number itself."""

LINEAR = 0.4
"""v, the number's part of its block: 0.2 and 0.6 were within 0.1 points of AUC."""

_PARTS = np.unique(np.concatenate([np.linspace(0, 1, 33), np.logspace(-4, 0, 25)]))
EDGES = tuple(float(edge) for edge in 2 * _PARTS - 1)
"""Public bins of a column in [−1, 1]: 32 equal ones, finer toward the lower bound, where tails of amounts begin."""


class Blocks(nn.Module):
    """Rows of a table from features in [−1, 1]: one block of length at most one for each column, over √columns.

        x ↦ (blocks of the columns) / √J,   so a row is at most one long

    A missing number is NaN and becomes a block of zeros. Features that are no numbers (categories, flags) stay as they
    are.

    Formal guarantee: a fixed function of the one record, given ranks that were released and paid for.
    Checked by: tests/features/test_curves.py

    Args:
        is_number: which features are numbers.
        columns: J, the columns of the table that the features come from.
        ranks: the distribution function of each number at `EDGES`; None to take numbers as they are.
    """

    is_number: Tensor
    ranks: Tensor | None
    frequencies: Tensor
    weights: Tensor
    edges: Tensor

    def __init__(
        self, is_number: Bool[Tensor, " d"], columns: int, ranks: Float[Tensor, "m edges"] | None = None
    ) -> None:
        super().__init__()
        self.columns = columns
        # Also as plain numbers: an exported model may not ask its tensors for the shape of a row.
        self._is_number: list[bool] = is_number.tolist()
        self.register_buffer("is_number", is_number)
        self.register_buffer("ranks", ranks)
        order = torch.arange(1, COSINES + 1, dtype=torch.float32)
        self.register_buffer("frequencies", math.pi * order, persistent=False)
        self.register_buffer("weights", (1 / order) / (1 / order).norm(), persistent=False)
        self.register_buffer("edges", torch.tensor(EDGES), persistent=False)

    @property
    def width(self) -> int:
        """Coordinates of a row."""
        return len(self._is_number) + (0 if self.ranks is None else sum(self._is_number) * (FUNCTIONS - 1))

    @property
    def places(self) -> list[list[int]]:
        """The coordinates of a row that each feature decides."""
        sizes = [FUNCTIONS if self.ranks is not None and number else 1 for number in self._is_number]
        ends = np.cumsum([0, *sizes]).tolist()
        return [list(range(*pair)) for pair in pairwise(ends)]

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        inside = x.clamp(-1.0, 1.0)
        if self.ranks is not None:
            inside = self._bent(inside, self.ranks)
        return inside.nan_to_num(0.0, 0.0, 0.0) / math.sqrt(max(1, self.columns))

    def _bent(self, x: Tensor, ranks: Tensor) -> Tensor:
        numbers = x[:, [place for place, is_number in enumerate(self._is_number) if is_number]]
        cosines = self.weights * torch.cos(self._ranked(numbers, ranks)[..., None] * self.frequencies)
        curves = torch.cat([math.sqrt(1 - LINEAR) * cosines, math.sqrt(LINEAR) * numbers[..., None]], -1)
        if all(self._is_number):
            return curves.flatten(1)
        found, number = [], 0
        for feature, is_number in enumerate(self._is_number):
            found.append(curves[:, number] if is_number else x[:, feature, None])
            number += is_number
        return torch.cat(found, 1)

    def _ranked(self, x: Float[Tensor, "n m"], ranks: Tensor) -> Float[Tensor, "n m"]:
        """Ranks of numbers, linear between edges; NaN stays NaN."""
        bins = (self._edges_up_to(x) - 1).clamp(0, len(EDGES) - 2)
        low, high = self.edges[bins], self.edges[bins + 1]
        below, above = ranks.T.gather(0, bins), ranks.T.gather(0, bins + 1)
        return below + (x - low) / (high - low) * (above - below)

    def _edges_up_to(self, x: Float[Tensor, "n m"]) -> Int64[Tensor, "n m"]:
        """How many edges are not above each number."""
        if (
            torch.compiler.is_exporting()
        ):  # ONNX has no bucketize; comparing with every edge takes much more memory
            return (x[..., None] >= self.edges).sum(-1)
        return torch.bucketize(x.contiguous(), self.edges, right=True)


def ranks_from_bins(released: Float[Tensor, " k"], columns: int) -> Float[Tensor, "m edges"]:
    """Distribution functions at `EDGES` from released bins of one column after the other; post-processing.

    Noise is taken out of sight by the largest sum so far: the function never falls. A column of which nothing stands
    out has the ranks of equally many records in each bin.
    """
    sums = released.view(columns, -1).double().cumsum(1).clamp_min(0.0).cummax(1).values
    sums = torch.cat([sums.new_zeros(columns, 1), sums], 1)
    even = torch.linspace(0, 1, len(EDGES), dtype=sums.dtype).expand_as(sums)
    whole = sums[:, -1:]
    return torch.where(whole > 0, sums / whole.clamp_min(1e-300), even).float()
