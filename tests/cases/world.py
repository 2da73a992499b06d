"""A small model, private records and public data that every method can be run on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource, SeededSource
from quietgrad._sampling.batch import Batch

RECORDS, CLASSES, SIDE = 40, 3, 6


SIZES = (1, 5, 3, 7, 2, 6, 4, 1, 6, 5)
USERS: dict[str, Any] = {
    "unit": [user for user, size in enumerate(SIZES) for _ in range(size)],
    "most_records": 4,
}
"""Ten users who share the records, for laws whose unit is a user."""


class SmallNet(nn.Module):
    """A convolution, a norm and two linear layers: every kind of block the methods treat differently."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.hidden = nn.Linear(4 * 9, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.norm(self.conv(x))).flatten(1)
        out: Tensor = self.head(torch.tanh(self.hidden(features)))
        return out


def small_net(dtype: torch.dtype = torch.float32, device: str = "cpu") -> SmallNet:
    torch.manual_seed(1)
    return SmallNet().to(device, dtype)


def records(
    dtype: torch.dtype = torch.float32, count: int = RECORDS, device: str | torch.device = "cpu"
) -> TensorDataset:
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(count, 1, SIDE, SIDE, generator=rng).to(dtype)
    y = torch.randint(CLASSES, (count,), generator=rng)
    return TensorDataset(x.to(device), y.to(device))


def public_losses(model: nn.Module) -> Tensor:
    """Losses on public images with random labels, redrawn under the step's public seed."""
    rng = torch.Generator().manual_seed(3)
    weight = next(model.parameters())
    x = torch.randn(24, 1, SIDE, SIDE, generator=rng).to(weight, non_blocking=True)
    labels = torch.randint(CLASSES, (24,)).to(weight.device, non_blocking=True)
    return F.cross_entropy(model(x), labels, reduction="none")


def grad_of(parameter: Tensor) -> Tensor:
    """What a release left in a parameter."""
    assert parameter.grad is not None
    return parameter.grad


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


@contextlib.contextmanager
def privatizer(
    mechanism: Mechanism,
    draws: Sequence[Sequence[int]],
    *,
    model: nn.Module | None = None,
    data: TensorDataset | None = None,
    source: NoiseSource | None = None,
    rate: float = 0.25,
    users: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[tuple[qg.Privatizer, qg.PoissonBatches, nn.Module]]:
    """A run over explicit draws with seeded noise and a fixed public seed: everything reproducible."""
    model = small_net() if model is None else model
    options.setdefault("public_seed", 7)
    weight = next(model.parameters())
    data = records(weight.dtype, device=weight.device) if data is None else data
    batches = qg.PoissonBatches.replay(data, draws, rate=rate, **(users or {}))
    private = qg.Privatizer(
        model, mechanism, batches, noise_source=source or SeededSource(5), deterministic=True, **options
    )
    with private:
        yield private, batches, model


def run(
    private: qg.Privatizer, batches: Iterable[Batch], model: nn.Module, *, micro: int = 64, lr: float = 0.0
) -> list[dict[str, Tensor]]:
    """Train through all batches with plain SGD; the gradients of each step."""
    history = []
    for batch in batches:
        for x, y in batch.split(micro):
            private.backward(losses_of(model, x, y))
        private.release()
        history.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(lr * p.grad)
    return history


def mean_gradient(
    model: nn.Module, data: TensorDataset, rows: Sequence[int], divisor: float
) -> dict[str, Tensor]:
    """Σ_i ∇loss_i / divisor by plain autograd."""
    x, y = data[list(rows)]
    grads = torch.autograd.grad(losses_of(model, x, y).sum() / divisor, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), grads, strict=True))
