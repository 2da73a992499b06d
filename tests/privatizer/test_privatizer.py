"""What `backward`, `release` and `explain` leave behind and tell."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 3), nn.LayerNorm(3), nn.Linear(3, 2)
    )


def make_data() -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(50, (40, 3), generator=rng), torch.randint(2, (40,), generator=rng))


def explained(seed: int) -> tuple[int, tuple[Any, ...]]:
    """Rows drawn in the first step, and what is reported about the layers after it."""
    model, batches = make_model(), qg.PoissonBatches(make_data(), rate=0.5, steps=3, seed=seed)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches, deterministic=True) as private:
        batch = next(iter(batches))
        for x, y in batch.split(64):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        return len(batch), private.explain().layers


def test_explain_does_not_tell_how_many_rows_were_drawn() -> None:
    few, many = explained(seed=1), explained(seed=5)
    assert few[0] != many[0]
    assert few[1] == many[1]
    assert any(layer.megabytes > 0 for layer in few[1])


def test_backward_drops_the_last_release() -> None:
    model, batches = make_model(), qg.PoissonBatches(make_data(), rate=0.9, steps=2, seed=0)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            assert all(p.grad is None for p in model.parameters())
            private.release()
            assert all(p.grad is not None for p in model.parameters())
