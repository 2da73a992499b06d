"""A module that lets records influence each other: refused before a gradient is taken, not found out by chance.

Running a module again on all rows at once reproduces what it did, whatever it mixes. That is for layers which are told
by indices which rows belong together. A module of numbers alone must give its outputs sample by sample.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg


class Leaning(nn.Module):
    """Adds to every record a little of its neighbour, through a parameter of its own."""

    def __init__(self, *, mixing: bool) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.full((4,), 0.1))
        self.mixing = mixing

    def forward(self, x: Tensor) -> Tensor:
        return x + self.amount * (x.roll(1, 0) if self.mixing else x.roll(1, 1))


def take_step(*, mixing: bool) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    model = nn.Sequential(nn.Linear(4, 4), Leaning(mixing=mixing), nn.Linear(4, 1))
    batches = qg.PoissonBatches(data, rate=1.0, steps=1)
    # Nobody asks this loop: what is left is what capture proves by itself.
    with qg.Privatizer(
        model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches, require_independence=False
    ) as private:
        for batch in batches:
            for x, y in batch.split(12):
                private.backward((model(x) - y).square().mean(1))
            private.release()


def test_a_module_that_mixes_records_is_refused() -> None:
    with pytest.raises(qg.PrivacyError, match=r"mixes? samples"):
        take_step(mixing=True)


def test_its_twin_that_keeps_them_apart_is_accepted() -> None:
    take_step(mixing=False)
