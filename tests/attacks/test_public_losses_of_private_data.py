"""Public losses that are not: a slice of the private data set serves as "public" data.

The basis of a projection, and with it every release, is then an un-noised function of private records. Slices and views
share memory with the data set given to PoissonBatches, so they can be seen; copies cannot.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg

Public = Callable[[nn.Module], Tensor]

METHODS: dict[str, Callable[[Public], qg.Mechanism]] = {
    "gep": lambda public: qg.methods.gep(public, rank=4),
    "gep_kept": lambda public: qg.methods.gep(public, rank=4, refresh_every=3),
    "biased_gep": lambda public: qg.methods.biased_gep(public, rank=4),
    "pdp_sgd": lambda public: qg.methods.pdp_sgd(public, rank=4),
    "preconditioned": lambda public: qg.methods.preconditioned(public),
    "preconditioned_often": lambda public: qg.methods.preconditioned(public, refresh_every=3),
}


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def trained(build: Callable[[Public], qg.Mechanism], data: TensorDataset, public_rows: Tensor) -> None:
    """One step; the public losses are those of `public_rows`."""
    model, batches = net(), qg.PoissonBatches(data, rate=1.0, steps=1)
    mechanism = build(lambda m: m(public_rows)[:, 0]).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(model(x)[:, 0])
            private.release()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("taken", ["all", "slice", "strided view"])
def test_public_losses_on_the_private_tensors_are_refused(method: str, taken: str) -> None:
    """On 0.1: accepted, every one."""
    data = TensorDataset(torch.randn(8, 4))
    (x,) = data.tensors
    rows = {"all": x, "slice": x[:6], "strided view": x[::2]}
    with pytest.raises(ValueError, match="would leak them"):
        trained(METHODS[method], data, rows[taken])


@pytest.mark.parametrize("method", METHODS)
def test_public_losses_on_other_tensors_are_accepted(method: str) -> None:
    """Also where they hold equal numbers: a refusal may not depend on values."""
    data = TensorDataset(torch.randn(8, 4))
    trained(METHODS[method], data, data.tensors[0].clone())
