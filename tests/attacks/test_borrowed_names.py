"""A function of the user's that bears the name of one of torch's: the graph's rules go by names.

The adversary calls an autograd function "Relu" that hands each record's gradient on to its neighbour too. Forwards it
keeps records apart, so that replacing some of them shows nothing. He reads what the batch releases with and without one
record.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence


def named(name: str, *, mixing: bool) -> Any:
    """An autograd function that doubles, of that name."""

    def forward(_: Any, x: Tensor) -> Tensor:
        return 2 * x

    def backward(_: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient + (gradient.roll(1, 0) if mixing else 0)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), members)


class Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.head, self.function = nn.Linear(6, 6), nn.Linear(6, 3), function

    def forward(self, x: Tensor) -> Tensor:
        losses: Tensor = self.head(self.function.apply(self.inner(x))).square().sum(1)
        return losses


@pytest.mark.parametrize("name", ["Relu", "Mul", "OverTime"])
@pytest.mark.parametrize("mixing", [True, False])
def test_a_name_proves_nothing(name: str, mixing: bool) -> None:
    """Before: 1.07 C, as "ReluBackward" was taken for torch's own; 1.46 C under another name, as all records were taken
    to have the gradient in common."""
    function = named(name, mixing=mixing)
    records = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    outcome = influence(lambda: Model(function), TensorDataset(records), list(range(8)))
    assert outcome.holds(), outcome
    assert (outcome.refusal is not None) == mixing
