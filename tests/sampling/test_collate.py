"""Batches of any form: padded text, dictionaries, BatchEncoding; empty draws need nothing from the user."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import quietgrad as qg
from quietgrad._sampling.collate import without_rows

LENGTHS = [1, 5, 2, 7, 3, 3, 9, 4, 1, 6, 2, 8]


class Texts(Dataset[dict[str, Any]]):
    """Token ids of different lengths with a label."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": torch.arange(1, LENGTHS[index] + 1), "label": index % 2}


class Encoding(UserDict[str, Tensor]):
    """As tokenizers return it: a dictionary that is not a dict."""


def padded(records: list[dict[str, Any]]) -> Encoding:
    ids = nn.utils.rnn.pad_sequence([record["ids"] for record in records], batch_first=True)
    return Encoding({"ids": ids, "label": torch.tensor([record["label"] for record in records])})


class Bag(nn.Module):
    """The mean embedding of a text, without its padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(-1)
        out: Tensor = self.head((self.embed(ids) * there).sum(1) / there.sum(1).clamp(min=1))
        return out


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["ids"]), batch["label"], reduction="none")


def test_padded_dictionaries_are_split_into_micro_batches() -> None:
    """Padded per micro-batch; without noise, the gradient is that of all texts one by one."""
    draws = [[0, 1, 3, 6, 8], [], [2]]
    torch.manual_seed(1)
    model = Bag()
    mechanism = qg.methods.dp_sgd(clip=1e6).with_noise(0.0)
    batches = qg.PoissonBatches(Texts(), rate=0.5, steps=3, collate_fn=padded, pad_to="longest")
    batches.sampler = qg.PoissonBatches.replay(Texts(), draws, rate=0.5).sampler
    widths = []
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch, rows in zip(batches, draws, strict=True):
            for part in batch.split(2):
                assert isinstance(part, Encoding)
                if not private.independence.is_asking:
                    widths.append(part["ids"].shape[1])
                private.backward(losses(model, part))
            private.release()
            assert torch.allclose(gradient(model), expected(model, rows), atol=1e-6)
    assert widths == [5, 9, 1, 2]


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def expected(model: nn.Module, rows: list[int]) -> Tensor:
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for row in rows:
        loss = losses(model, padded([Texts()[row]])).sum()
        total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    return total / 6


def test_a_data_loader_of_dictionaries_goes_through_empty_draws() -> None:
    model, sampler = Bag(), qg.PoissonSampler(len(LENGTHS), rate=0.05, steps=12, seed=3)
    loader = DataLoader(Texts(), batch_sampler=sampler, collate_fn=qg.collate_possibly_empty(Texts(), padded))
    sizes = []
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), sampler) as private:
        for batch in loader:
            assert isinstance(batch, Encoding)
            sizes.append(len(batch["label"]))
            private.backward(losses(model, batch))
            private.release()
    assert 0 in sizes
    assert max(sizes) > 0
    assert private.steps_left == 0


class Pair(NamedTuple):
    x: Tensor
    names: list[str]


@pytest.mark.parametrize(
    ("batch", "empty"),
    [
        ([torch.ones(1, 3), torch.ones(1)], [torch.ones(0, 3), torch.ones(0)]),
        ({"a": torch.ones(1, 2), "text": ["word"]}, {"a": torch.ones(0, 2), "text": []}),
        (Pair(torch.ones(1, 2), ["one"]), Pair(torch.ones(0, 2), [])),
        ((torch.ones(1), torch.tensor(3.0)), (torch.ones(0), torch.tensor(3.0))),
    ],
)
def test_a_row_is_taken_out_of_any_form(batch: Any, empty: Any) -> None:
    assert repr(without_rows(batch)) == repr(empty)
