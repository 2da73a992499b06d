"""Layers of language models that keep a cache while they train are refused, and the remedy works."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg


class RowsCache:
    """What was seen so far."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None


class Mixer(nn.Module):
    """A layer with a parameter of its own, as those of state space models are."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, past_key_values: RowsCache | None = None) -> Tensor:
        if past_key_values is not None:
            before = past_key_values.rows
            past_key_values.rows = x.detach() + (1.0 if before is None else before)
            x = x + past_key_values.rows
        return x * self.scale


class Model(nn.Module):
    def __init__(self, use_cache: bool) -> None:
        super().__init__()
        self.use_cache = use_cache
        self.mixer, self.head = Mixer(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        cache = RowsCache() if self.use_cache else None
        found: Tensor = self.head(self.mixer(x, past_key_values=cache))
        return found


def train(model: nn.Module) -> None:
    rng = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(8, 4, generator=rng), torch.arange(8) % 2)
    batches = qg.PoissonBatches.replay(data, [range(8)], rate=1.0)
    with qg.Privatizer(model, qg.methods.dp_sgd().with_noise(1.0), batches) as private:
        for batch in batches:
            for x, y in batch.split(8):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()


def test_a_cache_that_changes_is_refused_and_the_remedy_works() -> None:
    with pytest.raises(qg.PrivacyError, match="use_cache=False"):
        train(Model(use_cache=True))
    train(Model(use_cache=False))
