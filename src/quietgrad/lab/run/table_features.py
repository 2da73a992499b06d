"""From the features of a schema to what the head of a table's model reads, as modules and as saved numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._linear_probe.regression import with_intercept
from quietgrad.features.interactions import Products
from quietgrad.features.pipeline import Rescale
from quietgrad.features.table_rows import FeatureLayout, TableRows
from quietgrad.tables import Schema

RANKS, LEADING = "ranks", "leading"


class Intercept(nn.Module):
    """Append the constant of a regression."""

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return with_intercept(rows)


class ToTarget(nn.Module):
    """From [−1, 1] to a number between its stated bounds.

    Args:
        low: lower bound.
        high: upper bound.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, said: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
        return self.low + (said.clamp(-1.0, 1.0) + 1) / 2 * (self.high - self.low)


def numbers_of(rows: TableRows, last: nn.Module) -> dict[str, Tensor]:
    """Return what `table_features` needs beside the schema; all of it was released."""
    found = {} if rows.blocks.ranks is None else {RANKS: rows.blocks.ranks}
    if isinstance(last, Products):
        found[LEADING] = torch.tensor(last.leading)
        last = last.rescale
    return found | dict(last.state_dict())


def table_features(schema: Schema, numbers: Mapping[str, Tensor]) -> tuple[TableRows, nn.Module]:
    """Build the encoder and what follows it: a rescaling, perhaps with products, or the intercept of a regression."""
    rows = TableRows(FeatureLayout.of_schema(schema), numbers.get(RANKS))
    if "directions" not in numbers:
        return rows, Intercept()
    rescale = Rescale.shaped(*numbers["directions"].shape)
    rescale.load_state_dict({name: numbers[name] for name in ("mean", "directions")})
    return rows, Products(rescale, int(numbers[LEADING])) if LEADING in numbers else rescale
