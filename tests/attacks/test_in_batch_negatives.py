"""In-batch negatives: each record's loss runs over the embeddings of all others.

The gradients of n losses with respect to one record's embedding are summed before the library sees them. The
adversary reads what a batch releases with and without one record.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence


class TwoTowers(nn.Module):
    """loss_i = cross-entropy of user i's scores for the items of the whole batch."""

    def __init__(self, records: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.users, self.items = nn.Embedding(records, 4), nn.Embedding(records, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        scores = 30.0 * self.users(user) @ self.items(item).T
        return nn.functional.cross_entropy(scores, torch.arange(len(user)), reduction="none")


@pytest.mark.parametrize("records", [8, 128])
def test_no_record_moves_the_losses_of_others(records: int) -> None:
    """On 0.1: 2.9 C among 8 records, 4.5 C among 128."""
    pairs = TensorDataset(torch.arange(records), torch.arange(records).flip(0))
    rows = list(range(records))
    outcome = influence(lambda: TwoTowers(records), pairs, rows, removed=rows[:8], clip=0.1)
    assert outcome.holds(), outcome
