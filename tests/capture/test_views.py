"""Several views of a record are averaged before the clip, whatever form the gradient has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from tests.cases.world import privatizer

VIEWS, RECORDS = 3, 4


class Mixed(nn.Module):
    """Indexed, factored (with positions), convolved and formed gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.linear = nn.Linear(6, 5)
        self.conv = nn.Conv1d(5, 4, 3)
        self.norm = nn.LayerNorm(4)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(self.table(tokens)))
        out: Tensor = self.norm(self.conv(hidden.transpose(1, 2)).mean(2))
        return out


def test_the_average_equals_a_loop_over_records() -> None:
    model = Mixed().double()
    tokens = torch.randint(11, (RECORDS * VIEWS, 7), generator=torch.Generator().manual_seed(1))
    targets = torch.arange(RECORDS).repeat_interleave(VIEWS) % 4
    recorder = Recorder(model, deterministic=True)
    recorder.attach()
    losses = F.cross_entropy(model(tokens), targets, reduction="none")
    grads = recorder.collect(losses.view(RECORDS, VIEWS))
    recorder.detach()
    norms = torch.zeros(RECORDS, dtype=torch.float64)
    for record in range(RECORDS):
        rows = slice(record * VIEWS, (record + 1) * VIEWS)
        loss = F.cross_entropy(model(tokens[rows]), targets[rows], reduction="mean")
        expected = torch.autograd.grad(loss, list(model.parameters()))
        for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
            assert torch.allclose(grads.dense()[name][record], gradient), name
            norms[record] += gradient.square().sum()
    assert torch.allclose(grads.squared_norms(), norms, rtol=1e-5)


def test_a_record_counts_once_however_many_views_it_has() -> None:
    mechanism = qg.methods.dp_sgd(clip=0.01).with_noise(0.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with privatizer(mechanism, [[0, 1]], model=model) as (private, batches, _):
        x, y = next(next(iter(batches)).split(2))
        views = torch.stack([x, x.flip(-1), x.flip(-2)], dim=1).flatten(0, 1)
        losses = F.cross_entropy(model(views), y.repeat_interleave(VIEWS), reduction="none")
        private.backward(losses.view(2, VIEWS))
        private.release()
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm() * 10
    assert 0.01 < float(norm) <= 0.02


def test_views_must_not_be_counted_as_rows() -> None:
    mechanism = qg.methods.dp_sgd(clip=0.01).with_noise(0.0)
    with privatizer(mechanism, [[0, 1]]) as (private, batches, model):
        x, y = next(next(iter(batches)).split(2))
        losses = F.cross_entropy(model(x.repeat(VIEWS, 1, 1, 1)), y.repeat(VIEWS), reduction="none")
        with pytest.raises(ValueError, match="more losses than rows"):
            private.backward(losses)
