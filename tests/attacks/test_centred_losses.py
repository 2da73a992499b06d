"""Losses `[n, views]` of outputs that were centred over the batch: z − z.mean(0).

Through an embedding, the library takes one backward for each loss and never asks whose it is. The adversary reads what
a batch releases with and without one record.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence


class Centred(nn.Module):
    """A score for each of a record's t words, centred over the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(40, 1)

    def forward(self, text: Tensor, scale: Tensor) -> Tensor:
        z = scale[:, None] * self.words(text)[..., 0]
        losses: Tensor = (z - z.mean(0)).square()
        return losses


@pytest.mark.parametrize("seed", range(3))
def test_centred_losses_are_refused_or_bounded(seed: int) -> None:
    """On 0.1: 4.0, 2.3 and 1.9 C."""
    rng = torch.Generator().manual_seed(seed)
    text = torch.arange(4)[:, None].expand(-1, 3) + torch.tensor([0, 10, 20])
    data = TensorDataset(text, 10.0 ** (3 * torch.rand(4, generator=rng) - 1))
    outcome = influence(Centred, data, [0, 1, 2, 3])
    assert outcome.holds(), outcome
