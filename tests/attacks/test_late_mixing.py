"""Mixing that begins late: the first forward is innocent, from the second on the batch is centred.

The library proves the layout of a layer at the first batch and trusts it afterwards. The adversary reads what the
second batch releases with and without one record.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence


class Late(nn.Module):
    """Centres its hidden layer over the batch once it has been called `after` times."""

    def __init__(self, after: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 1, bias=False)
        self.calls, self.after = 0, after

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        self.calls += 1
        if self.calls > self.after:
            hidden = hidden - hidden.mean(0)
        losses: Tensor = self.head(hidden)[:, 0]
        return losses


@pytest.mark.parametrize("after", [1, 3])
def test_mixing_is_seen_whenever_it_begins(after: int) -> None:
    """On 0.1: 4.0 C."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 2, 8)[:, None]
    rows = list(range(8))
    outcome = influence(lambda: Late(after), TensorDataset(x), rows, before=[rows] * after)
    assert outcome.holds(), outcome
