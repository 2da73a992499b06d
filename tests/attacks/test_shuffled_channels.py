"""Records among shuffled channels: `channel_shuffle` moves dimension 1, in five dimensions as in four.

The model shuffles, works and shuffles back, so that records stay apart. The library believed that in five dimensions
the channels are the third, took two records for one inside, and released both under one clip each. The adversary reads
what a batch releases with and without one record.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence

N, WIDTH = 4, 5


class Shuffled(nn.Module):
    """`[1, 2n, 1, 1, w]`: two channels of each record, which lie n apart between the shuffles."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        shuffled = F.channel_shuffle(x.reshape(1, 2 * n, 1, 1, WIDTH), n)
        hidden = F.channel_shuffle(self.inner(shuffled).square(), 2)
        return hidden.reshape(n, -1).sum(1)


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_records_are_never_taken_for_each_other(seed: int) -> None:
    """On 0.2: 1.4 to 1.8 C."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 2, WIDTH, generator=rng) * 10.0 ** (2 * torch.rand(N, 1, 1, generator=rng))
    outcome = influence(Shuffled, TensorDataset(x), list(range(N)))
    assert outcome.refusal is None, outcome
    assert outcome.holds(), outcome
