"""Sequences of length 0 add nothing, and complex parameters are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture.layout import Layout, at_stride

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "linear": (lambda: nn.Linear(4, 3), lambda model, x: model(x).sum((1, 2))),
    "embedding": (lambda: nn.Embedding(5, 3), lambda model, x: model(x[..., 0].long()).sum((1, 2))),
    "layer norm": (lambda: nn.LayerNorm(4), lambda model, x: model(x).sum((1, 2))),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda model, x: model(x.transpose(1, 2)).sum((1, 2))),
    "turned": (
        lambda: nn.Linear(4, 3),
        lambda model, x: model(x.transpose(0, 1)).reshape(x.shape[1], len(x), 3).sum((0, 2)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("draws", [[[0, 1, 2], [3]], [[0, 1, 2, 3], []]])
def test_sequences_of_length_zero_add_nothing(name: str, draws: list[list[int]]) -> None:
    """On 0.2: ZeroDivisionError, or a reshape that is ambiguous."""
    build, losses = MODELS[name]
    model = build()
    batches = qg.PoissonBatches.replay(TensorDataset(torch.randn(6, 0, 4)), draws, rate=0.5)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(0.0), batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(losses(model, x))
            private.release()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("shape", [(3, 0, 4), (0, 3, 4), (3, 4, 0)])
def test_an_empty_gradient_has_the_layout_of_its_sizes(shape: tuple[int, ...]) -> None:
    assert at_stride(0, torch.Size(shape), 3) == Layout(shape.index(3))


def test_complex_parameters_are_refused_by_name() -> None:
    """On 0.2: trained, but their imaginary gradients were dropped."""
    model = nn.Linear(4, 2, dtype=torch.complex64)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(6, 4)), rate=0.5, steps=2)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with pytest.raises(ValueError, match=r"'weight' is complex64.*view_as_complex"):
        qg.Privatizer(model, mechanism, batches)
    qg.Privatizer(nn.Sequential(nn.Linear(4, 2), model.requires_grad_(False)), mechanism, batches).close()
