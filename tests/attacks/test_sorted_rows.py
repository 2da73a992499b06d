"""Sorted by length and back: a layer inside sees the records of a batch in another order each time.

The adversary lets the library learn a batch that is sorted already; in the next one the layer's rows belong to other
records than it believes. He reads what the batch releases with and without one record.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence


class Sorting(nn.Module):
    """As packed sequences do it: longest first, through the layer, and back into the given order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, length: Tensor, scale: Tensor) -> Tensor:
        order = length.argsort(descending=True, stable=True)
        hidden = torch.tanh(self.inner(x[order]))[order.argsort()]
        losses: Tensor = scale * self.head(hidden).square().sum(1)
        return losses


def sequences(seed: int) -> TensorDataset:
    """Eight records in order of length, then eight in none."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.cat([torch.arange(8, 0, -1), torch.randperm(8, generator=rng)])
    return TensorDataset(
        torch.randn(16, 6, generator=rng), lengths, 10.0 ** (4 * torch.rand(16, generator=rng) - 2)
    )


@pytest.mark.parametrize("seed", range(4))
def test_sorted_rows_go_back_to_their_records(seed: int) -> None:
    """On 0.1: 1.6, 1.6, 2.1 and 1.5 C."""
    outcome = influence(Sorting, sequences(seed), list(range(8, 16)), before=[list(range(8))])
    assert outcome.holds(), outcome
