"""Gradient hooks of the user's count on every path: one record alone, many at once, attributed by probing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder


def direct(hidden: Tensor) -> Tensor:
    return hidden


def shuffled(hidden: Tensor) -> Tensor:
    """An index, behind which graph analysis does not know the samples."""
    order = torch.arange(len(hidden)).flip(0)
    return hidden[order][order]


class Hooked(nn.Module):
    """Two layers, the output of each with a hook that clamps."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.between = nn.Linear(6, 5), nn.Linear(5, 4), between

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden.register_hook(lambda g: g.clamp(-0.05, 0.05))
        out = self.second(self.between(hidden.tanh()))
        out.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return out.square().sum(1)


@pytest.mark.parametrize("between", [direct, shuffled])
@pytest.mark.parametrize("records", [1, 2, 5])
def test_hooks_on_outputs_count(between: Callable[[Tensor], Tensor], records: int) -> None:
    """On 0.2 the hook of the last layer did not, for a record alone."""
    model, x = Hooked(between), torch.randn(records, 6, generator=torch.Generator().manual_seed(1))
    expected = [torch.autograd.grad(model(row[None]).sum(), list(model.parameters())) for row in x]
    recorder = Recorder(model)
    recorder.attach()
    grads = recorder.collect(model(x)).dense()
    recorder.detach()
    for place, (name, _) in enumerate(model.named_parameters()):
        truth = torch.stack([row[place] for row in expected])
        torch.testing.assert_close(grads[name], truth)
