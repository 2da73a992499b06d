"""An error states how many rows were drawn: whoever provokes it each step knows whether N or N − 1 records draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg

Misuse = Callable[[qg.Privatizer, nn.Module, list[Tensor]], Any]


def twice(private: qg.Privatizer, model: nn.Module, parts: list[Tensor]) -> None:
    for _ in range(2):
        private.backward(model(parts[0])[:, 0])


MISUSES: dict[str, Misuse] = {
    "too few losses": lambda private, model, parts: private.backward(model(parts[0])[:-1, 0]),
    "too many losses": lambda private, model, parts: private.backward(model(parts[0].repeat(2, 1))[:, 0]),
    "passed twice": twice,
    "released early": lambda private, *_: private.release(),
    "a scalar": lambda private, model, parts: private.backward(model(parts[0]).mean()),
    "three dimensions": lambda private, model, parts: private.backward(model(parts[0])[:, :, None]),
    "no views": lambda private, model, parts: private.backward(model(parts[0])[:, :0]),
}


def _misused(misuse: Misuse, private: qg.Privatizer, model: nn.Module, parts: list[Tensor]) -> None:
    misuse(private, model, parts)
    private.release()  # with a DataLoader only this shows that losses are missing


def message(misuse: Misuse, rows: int, *, loader: bool) -> str:
    data, model = TensorDataset(torch.randn(64, 3)), nn.Linear(3, 2)
    batches = qg.PoissonBatches.replay(data, [list(range(rows))], rate=0.5)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches.sampler if loader else batches) as private:
        parts = [x for (x,) in next(iter(batches)).split(64)]
        with pytest.raises(ValueError) as caught:
            _misused(misuse, private, model, parts)
    return str(caught.value)


@pytest.mark.parametrize("loader", [False, True], ids=["batches", "loader"])
@pytest.mark.parametrize("name", MISUSES)
def test_an_error_is_the_same_for_every_size_of_the_draw(name: str, loader: bool) -> None:
    said = {message(MISUSES[name], rows, loader=loader) for rows in (13, 29)}
    assert len(said) == 1, said
