"""Ways by which 0.2's check of independence was switched off or used up, each with mixing behind it.

The adversary reads the clipped sum with and without one record. On 0.2 these loops moved it by 3.0 C and 1.7 C (probes
used up by micro-batches of one record), 1.02 C (a mixing hook), 3.0 C and 1.7 C (an offset of 1e6). Those with
`retain_grad`, a hook or `autograd.grad` in the forward were refused there too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import influence

N, WIDTH = 8, 4
ROWS = list(range(N))


def records() -> TensorDataset:
    """One of them is large, so that it moves the others far."""
    x = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0))
    x[0] *= 30.0
    return TensorDataset(x)


def centred(h: Tensor) -> Tensor:
    """No gradient goes through the mean, so that no gradient shows it."""
    return h - h.detach().mean(0)


def attended(h: Tensor) -> Tensor:
    return h + (h @ h.detach().T).softmax(1) @ h.detach()


class Mixing(nn.Module):
    """A hidden layer that the batch is mixed in, after something that confuses who looks on."""

    def __init__(
        self, mix: Callable[[Tensor], Tensor], before: Callable[[Tensor], object] | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.mix, self.before = mix, before

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.before is not None and h.requires_grad:
            self.before(h)
        return self.head(self.mix(h)).logsumexp(1)


@pytest.mark.parametrize("mix", [centred, attended])
def test_micro_batches_of_one_record_use_up_no_probes(mix: Callable[[Tensor], Tensor]) -> None:
    """The first draws hold one record each; nothing can be learned from them, and nothing is."""
    outcome = influence(lambda: Mixing(mix), records(), ROWS, removed=[0], before=[[1], [2], [3], [4], []])
    assert outcome.refusal is not None


BEFORE: dict[str, Callable[[Tensor], object]] = {
    "retain_grad": lambda h: h.retain_grad(),
    "register_hook": lambda h: h.register_hook(lambda g: g * 1.0),
    "autograd.grad": lambda h: torch.autograd.grad(h.square().sum(), h, retain_graph=True),
}


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("mix", [centred, attended])
def test_nothing_in_the_forward_switches_the_check_off(name: str, mix: Callable[[Tensor], Tensor]) -> None:
    outcome = influence(lambda: Mixing(mix, BEFORE[name]), records(), ROWS, removed=[0])
    assert outcome.refusal is not None


@pytest.mark.parametrize("name", BEFORE)
def test_the_same_without_mixing_is_accepted(name: str) -> None:
    outcome = influence(lambda: Mixing(lambda h: h, BEFORE[name]), records(), ROWS, removed=[0])
    assert outcome.refusal is None
    assert outcome.holds()


def test_a_hook_that_mixes_gradients_is_seen() -> None:
    def mixing(h: Tensor) -> None:
        h.register_hook(lambda g: g + g.flip(0))

    assert influence(lambda: Mixing(lambda h: h, mixing), records(), ROWS, removed=[0]).refusal is not None


@pytest.mark.parametrize("mix", [centred, attended])
@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_an_offset_of_the_loss_hides_no_mixing(mix: Callable[[Tensor], Tensor], offset: float) -> None:
    outcome = influence(
        lambda: Mixing(mix), records(), ROWS, lambda model, x: model(x) + offset, removed=[0], clip=0.1
    )
    assert outcome.refusal is not None


def test_complex_parameters_are_refused() -> None:
    """Their imaginary gradient would be lost, and with it the meaning of the clip."""
    model = nn.Linear(WIDTH, 2, dtype=torch.complex64)
    batches = qg.PoissonBatches(records(), rate=0.5, steps=1)
    with pytest.raises(ValueError, match="complex64"):
        qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
