"""A record that is scaled by e^±80 on the way: whether the library refuses must not tell that it is there.

The model reads positions by a mask, in no regular order, so that probing has to find the owner of each. One record
multiplies its part by e^±80, and may divide by it again. Powers of two on top of that overflow or vanish. The adversary
counts refusals with and without the record.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence

N, TOKENS, WIDTH, RUNS = 6, 5, 4, 4


class Weigh(torch.autograd.Function):
    """A function of the user's: x·w, whose backward nobody can look into."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.weight, None


class Scaled(nn.Module):
    """Hidden tokens picked by a mask, scaled and scaled back; one loss per record."""

    def __init__(self, *, back: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.back = back

    def forward(self, x: Tensor, mask: Tensor, power: Tensor) -> Tensor:
        hidden = self.body(x)
        owner = mask.nonzero()[:, 0]
        each = Weigh.apply(self.head(hidden[mask]).tanh()[:, 0], power.exp()[owner])
        losses = hidden.new_zeros(len(x)).index_add(0, owner, each)
        return losses * (-power).exp() if self.back else losses


def records(power: float) -> TensorDataset:
    """The first record is scaled by e^power; each picks between one and four tokens."""
    rng = torch.Generator().manual_seed(0)
    counts = torch.tensor([3, 1, 4, 2, 1, 3])
    mask = torch.arange(TOKENS)[None] < counts[:, None]
    powers = torch.zeros(N)
    powers[0] = power
    return TensorDataset(torch.randn(N, TOKENS, WIDTH, generator=rng), mask, powers)


@cache
def refusals(power: float, *, back: bool) -> int:
    """How many of the runs were refused; each of the others must keep the sensitivity."""
    outcomes = [
        influence(lambda: Scaled(back=back), records(power), list(range(N)), removed=[0]) for _ in range(RUNS)
    ]
    assert all(outcome.holds() for outcome in outcomes)
    return sum(outcome.refusal is not None for outcome in outcomes)


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("power", [80.0, -80.0])
def test_refusals_do_not_tell_an_extreme_record(power: float, back: bool) -> None:
    """On 0.2 all runs with e^−80 were refused, and none without."""
    assert refusals(power, back=back) == refusals(0.0, back=back) == 0
