"""Refusals that tell: a correct model must be accepted, whatever the values of one record are.

A refusal that depends on a record is a release of its own, and a wrong one besides. Every model here treats its
records apart; only rounding makes the probe's second gradient differ from a multiple of the first.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import BuiltinFunctionType

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import Build, clipped_sum

SEEDS, RECORDS, SPECIAL = 20, 8, 3


def errors(
    build: Build, make: Callable[[torch.Generator], TensorDataset], *, seeds: int = SEEDS
) -> list[str]:
    """What was said about so many data sets; nothing, if all were accepted."""
    said = []
    for seed in range(seeds):
        data = make(torch.Generator().manual_seed(seed))
        try:
            clipped_sum(build, data, list(range(RECORDS)))
        except (ValueError, RuntimeError) as error:
            said.append(f"{seed}: {error}")
    return said


def labels(rng: torch.Generator) -> Tensor:
    return torch.randint(3, (RECORDS,), generator=rng)


class Gated(nn.Module):
    """Softmax features, which saturate for large inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.softmax(self.b(torch.relu(self.a(x))), 1)
        return nn.functional.cross_entropy(20 * self.c(hidden), y, reduction="none")


@pytest.mark.parametrize("size", [1.0, 30.0, 100.0, 1000.0])
def test_a_saturating_record_is_accepted(size: float) -> None:
    """On 0.1: refused for 0, 0, 5 and 2 of 20 data sets."""

    def make(rng: torch.Generator) -> TensorDataset:
        x = torch.randn(RECORDS, 8, generator=rng)
        x[SPECIAL] *= size
        return TensorDataset(x, labels(rng))

    assert errors(Gated, make) == []


class Attention(nn.Module):
    """Words, one head of attention, the mean over the words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, text: Tensor, y: Tensor) -> Tensor:
        hidden = self.words(text)
        scores = self.query(hidden) @ self.key(hidden).transpose(1, 2)
        scores = scores.masked_fill((text == 0)[:, None], -torch.inf)
        pooled = (torch.softmax(scores, -1) @ self.value(hidden)).mean(1)
        return nn.functional.cross_entropy(self.head(pooled), y, reduction="none")


class Standardised(nn.Module):
    """Features standardised over the words of a record."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.value, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, text: Tensor, y: Tensor) -> Tensor:
        there = (text != 0)[..., None]
        count = there.sum(1, keepdim=True)
        hidden = self.value(self.words(text))
        hidden = (hidden - (hidden * there).sum(1, keepdim=True) / count) * there
        hidden = hidden / (hidden.square().sum(1, keepdim=True) / count + 1e-5).sqrt()
        return nn.functional.cross_entropy(self.head(torch.tanh(hidden).amax(1)), y, reduction="none")


@pytest.mark.parametrize("words", [1, 2, 12])
@pytest.mark.parametrize("build", [Attention, Standardised])
def test_a_short_or_repeated_text_is_accepted(build: type[nn.Module], words: int) -> None:
    """Of 20 data sets with one such text among long ones, 0.1 refused
    9 (attention, twelve times the same word), 3 and 19 (standardised; two words, the same word)."""

    def make(rng: torch.Generator) -> TensorDataset:
        text = torch.randint(1, 20, (RECORDS, 12), generator=rng)
        text[SPECIAL, :words] = text[SPECIAL, 0] if words == 12 else text[SPECIAL, :words]
        text[SPECIAL, words:] = 0
        return TensorDataset(text, labels(rng))

    assert errors(build, make) == []


class Queries(nn.Module):
    """Eight learned queries that all records share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.queries, self.norm = nn.Embedding(8, 6), nn.LayerNorm(6)
        self.key, self.head = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.key(x)
        weights = torch.softmax(self.norm(self.queries(torch.arange(8))) @ keys.transpose(1, 2), -1)
        losses: Tensor = self.head(weights @ keys).mean((1, 2))
        return losses


@pytest.mark.parametrize("records", [1, 2, 3, 4, 5, 8, 16])
def test_learned_queries_are_accepted_whatever_the_batch(records: int) -> None:
    """On 0.1: refused for 2, 4 and 8 records, which divide the queries."""
    data = TensorDataset(torch.randn(16, 5, 6, generator=torch.Generator().manual_seed(0)))
    rows = list(range(records))
    whole = clipped_sum(Queries, data, rows)
    alone = torch.stack([clipped_sum(Queries, data, [row]) for row in rows]).sum(0)
    assert float((whole - alone).norm()) <= 1e-4


class Perceptron(nn.Module):
    """Deep and narrow, so that rounding adds up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        layers = [part for _ in range(6) for part in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())]
        self.layers = nn.Sequential(*layers, nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm, self.head = nn.Conv1d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.conv(x[:, None]))).flatten(1))
        return out


class Cast(nn.Module):
    """A float32 model in half precision, as most are trained."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            out = self.model(x)
        return nn.functional.cross_entropy(out.float(), y, reduction="none")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("build", [Perceptron, Convolution])
def test_autocast_models_are_accepted(build: type[nn.Module], dtype: torch.dtype) -> None:
    """On 0.1: all 20 data sets refused in bfloat16; convolutions fail with a torch error in both dtypes."""

    def make(rng: torch.Generator) -> TensorDataset:
        return TensorDataset(torch.randn(RECORDS, 8, generator=rng), labels(rng))

    assert errors(lambda: Cast(build(), dtype), make, seeds=4) == []


@pytest.mark.parametrize("records", [7, 8, 9])
def test_a_constant_that_is_the_size_of_the_batch_is_accepted(records: int) -> None:
    """Eight classes, and a loop that asks for `len`: with eight records the constant was taken for their number."""

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        scores: Tensor = model(x)
        return scores.square().view(len(x), -1).sum(1) / 8

    data = TensorDataset(torch.randn(records, 4, generator=torch.Generator().manual_seed(0)))
    whole = clipped_sum(lambda: nn.Linear(4, 8), data, list(range(records)), losses)
    assert whole.isfinite().all()
    assert isinstance(builtins.len, BuiltinFunctionType), "len is what it was"
