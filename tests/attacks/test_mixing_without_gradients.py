"""Mixing that no gradient shows: a record changes what is computed from others, through numbers and not derivatives.

The adversary reads what a batch releases with and without one record: the others' gradients change too, and together
they move the sum by more than C.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import Losses, influence

WIDTH, RECORDS = 4, 8


class Net(nn.Module):
    """Two layers; `mix` stands between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.mix(self.inner(self.prepare(x))))

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def mix(self, hidden: Tensor) -> Tensor:
        return hidden

    def loss(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.head(hidden).square().sum(1)
        return out


class DetachedMean(Net):
    """Centred by statistics of the batch that get no gradient."""

    def mix(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.detach().mean(0)


class MaxScaling(Net):
    """Inputs divided by the largest of the batch."""

    def prepare(self, x: Tensor) -> Tensor:
        return x / x.abs().max() if len(x) else x


class ExpertCapacity(Net):
    """The first two records of a batch that choose the expert get it; the others pass by."""

    def mix(self, hidden: Tensor) -> Tensor:
        wanted = hidden.detach()[:, 0] > 0
        served = wanted & (wanted.cumsum(0) <= 2)
        return torch.where(served[:, None], 4 * hidden, -hidden)


class Mixup(Net):
    """Each record averaged with the next one."""

    def prepare(self, x: Tensor) -> Tensor:
        return 0.5 * x + 0.5 * x.roll(1, 0)


class HardExamples(Net):
    """Only losses above the batch's mean count."""

    def loss(self, hidden: Tensor) -> Tensor:
        losses = super().loss(hidden)
        return losses * (losses.detach() >= losses.detach().mean())


@pytest.mark.parametrize("build", [DetachedMean, MaxScaling, ExpertCapacity, Mixup, HardExamples])
def test_mixing_without_a_gradient_is_refused_or_bounded(build: type[nn.Module]) -> None:
    """On 0.1: detached mean 7.3 C, scaling 1.55 C, capacity 1.95 C, mixup 2.2 C, hard examples 1.7 C."""
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        sizes = 10.0 ** (2.5 * torch.rand(RECORDS, 1, generator=rng) - 1)
        data = TensorDataset(sizes * torch.randn(RECORDS, WIDTH, generator=rng))
        outcome = influence(build, data, list(range(RECORDS)))
        assert outcome.holds(), outcome


def weight() -> nn.Module:
    return nn.Linear(1, 1, bias=False)


def per_batch(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """The mean that a loop is used to take, by hand."""
    out: Tensor = model(x)[:, 0] / max(1, len(x))
    return out


def per_number(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """The same by the number of elements."""
    losses: Tensor = model(x)[:, 0]
    return losses / max(1, losses.numel())


def per_class(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
    """Classes balanced within the batch."""
    out: Tensor = model(x)[:, 0] / (kind[:, None] == kind[None]).sum(1)
    return out


@pytest.mark.parametrize("loop", [per_batch, per_number, per_class])
def test_losses_divided_by_a_count_of_the_batch_are_refused_or_bounded(loop: Losses) -> None:
    """Gradients 1 and −2: a half and −1 of them are left together, and 1 of the first alone. On 0.1: 1.5 C."""
    data = TensorDataset(torch.tensor([[1.0], [-2.0]]), torch.tensor([1, 1]))
    outcome = influence(weight, data, [0, 1], loop)
    assert outcome.holds(), outcome
