"""Patches without a batch dimension: `fold` and `unfold` take `[c, h, w]`, and put the windows among the channels.

The model keeps its records apart: they lie among the channels, or along the height. The library believed that the
first dimension of patches is never touched, and cut the gradients at the wrong places. The adversary reads what a
batch releases with and without one record.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence

N, WINDOWS, PLACES, WIDTH = 4, 4, 9, 5


class Folded(nn.Module):
    """Folds the columns of all records at once: `[n·4, 9]` → `[n, 4, 4]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(WIDTH, PLACES)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.inner(x[:, :WINDOWS]).flatten(0, 1)
        return F.fold(columns, (4, 4), 2).square().sum((1, 2))


class Unfolded(nn.Module):
    """Windows over the height, along which the records lie: `[t, n, w]` → `[t·n, w]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        hidden = self.inner(x.transpose(0, 1))
        columns = F.unfold(hidden, (n, 1))
        return columns.view(-1, n, WIDTH).square().sum((0, 2))


@pytest.mark.parametrize("model", [Folded, Unfolded])
@pytest.mark.parametrize("seed", range(3))
def test_windows_are_never_taken_for_records(model: type[nn.Module], seed: int) -> None:
    """On 0.2: 1.7 to 2.4 C."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 12, WIDTH, generator=rng) * 10.0 ** (2 * torch.rand(N, 1, 1, generator=rng))
    outcome = influence(model, TensorDataset(x), list(range(N)))
    assert outcome.refusal is None, outcome
    assert outcome.holds(), outcome
