"""A newcomer's task: a preconditioning representation in one short class, and no gradient is ever formed.

`Preconditioned` and its codec are all that has to be written: P·g is clipped and noised, and decoding applies P again.
The rest of this file shows that it holds what the laws demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._independence.in_loop import LoopCheck
from quietgrad._mechanism.clipping import MARGIN


class PreconditionedCodec(qg.Codec):
    """Multiplies each matrix `[o, i]` by P `[i, i]` on the input side; other blocks pass as they are."""

    def __init__(self, space: Any, scales: dict[str, Tensor]) -> None:
        self.space, self.scales = space, scales

    def encode(self, grads: qg.PerSampleGrads) -> qg.PerSampleGrads:
        scaled = {name: block.scale(right=self.scales.get(name)) for name, block in grads.blocks.items()}
        return qg.BlockwiseGrads(scaled, grads.samples)

    def decode(self, released: qg.Released) -> dict[str, Tensor]:
        return {name: self._apply(name, block) for name, block in released.blocks.items()}

    def _apply(self, name: str, block: Tensor) -> Tensor:
        if name not in self.scales:
            return block
        return (block.flatten(1) @ self.scales[name].to(block)).reshape(block.shape)


@dataclass(frozen=True)
class Preconditioned(qg.Representation):
    """encode(g) = g·P with P = (1 − mix)·I + mix·11ᵀ/i, a fixed positive matrix: it looks at no data at all."""

    mix: float = 0.5

    def refresh(self, public: qg.Public, state: dict[str, Any]) -> tuple[qg.Codec, dict[str, Any]]:
        widths = {name: shape[1:].numel() for name, shape in public.space.items() if len(shape) > 1}
        scales = {
            name: (1 - self.mix) * torch.eye(width) + self.mix / width for name, width in widths.items()
        }
        return PreconditionedCodec(public.space, scales), state


# ---- what it must hold ---------------------------------------------------------------------------------------

N = 12
RECORDS = torch.randn(N, 4, 5, 5, generator=torch.Generator().manual_seed(1)), torch.arange(N) % 3


class Net(nn.Module):
    """A convolution, a linear layer over its four positions, a linear head: norms of all of them need no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.tokens, self.head = nn.Conv2d(4, 16, 3, 2), nn.Linear(16, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.conv(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(torch.tanh(self.tokens(positions)).mean(1))
        return out


def prepared(noise: float) -> tuple[Net, qg.PoissonBatches, qg.Mechanism]:
    model = Net()
    release = qg.Release(representation=Preconditioned(), clip=qg.FlatClip(0.1))
    mechanism = qg.Mechanism(name="preconditioned", releases=(release,)).with_noise(noise)
    return model, qg.PoissonBatches(TensorDataset(*RECORDS), rate=1.0, steps=1), mechanism


def train(model: Net, batches: qg.PoissonBatches, mechanism: qg.Mechanism) -> None:
    with qg.Privatizer(model, mechanism, batches, deterministic=True) as private:
        for batch in batches:
            for x, y in batch.split(5):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()


def test_a_real_step_forms_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    formed: list[str] = []
    # Asking about a micro-batch takes projections, which some kinds of gradients form for it.
    monkeypatch.setattr(LoopCheck, "_is_due", lambda *_: False)
    for kind in (FactoredGrad, ConvGrad):
        for algorithm in ("dense", "chunks"):
            monkeypatch.setattr(kind, algorithm, lambda self: formed.append(type(self).__name__))
    model, batches, mechanism = prepared(1.0)
    train(model, batches, mechanism)
    assert formed == []
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad != 0).all())


def test_without_noise_the_step_is_the_clipped_sum_mapped_twice() -> None:
    model, batches, mechanism = prepared(0.0)
    x, y = RECORDS
    matrices = {
        name: 0.5 * torch.eye(p[0].numel()) + 0.5 / p[0].numel()
        for name, p in model.named_parameters()
        if p.dim() > 1
    }
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(N):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        row = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        row = {name: g.flatten(1) @ matrices[name] if name in matrices else g for name, g in row.items()}
        length = torch.cat([part.flatten() for part in row.values()]).norm()
        for name, part in row.items():
            twice = part @ matrices[name] if name in matrices else part
            expected[name] += (twice * min(1.0, 0.1 / float(length))).reshape(expected[name].shape) / N
    train(model, batches, mechanism)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1.1 * MARGIN, atol=1e-6)


def test_one_sample_moves_the_sum_by_the_clip_at_most() -> None:
    """Law 2 on this representation: whoever is added, however large the gradient."""
    model, batches, mechanism = prepared(1.0)
    with qg.Privatizer(model, mechanism, batches, deterministic=True) as private:
        step = private.begin_step()
        rows = {name: torch.randn(N, *shape) for name, shape in step.public.space.items()}
        for scale in (1e-3, 1.0, 1e6):
            grads = qg.BlockwiseGrads({name: qg.DenseGrad(scale * each) for name, each in rows.items()}, N)
            fewer = qg.BlockwiseGrads(
                {name: qg.DenseGrad(scale * each[1:]) for name, each in rows.items()}, N - 1
            )
            whole, part = step.encoded_sum(0, grads), step.encoded_sum(0, fewer)
            moved = torch.cat([(whole.blocks[name] - part.blocks[name]).flatten() for name in rows])
            assert float(moved.norm()) <= whole.sensitivity
