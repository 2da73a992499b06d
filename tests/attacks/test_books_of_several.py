"""Several runs or ranks on the same records: what they cost and move together.

On 0.2 three runs on one ledger without plan each said ε = 6.7 where 11.5 were spent, and two ranks that held the same
records in another order trained: one record could be in both parts, with twice the sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import quietgrad as qg
from quietgrad._collective import Facts, SingleProcess
from quietgrad._privatizer.same_records import check_same_records

DELTA, N = 1e-5, 16
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
T = TypeVar("T")


def train(ledger: qg.Ledger) -> qg.Privatizer:
    model, batches = nn.Linear(3, 1), qg.PoissonBatches(TensorDataset(X), rate=0.5, steps=3)
    with qg.Privatizer(model, MECHANISM, batches, ledger=ledger) as private:
        for batch in batches:
            for (x,) in batch.split(N):
                private.backward(model(x)[:, 0])
            private.release()
    return private


def test_no_run_says_less_than_its_ledger_has_spent() -> None:
    ledger = qg.Ledger()
    runs = [train(ledger) for _ in range(3)]
    spent = qg.accounting.epsilon(ledger.phases, DELTA)
    assert spent > 1.5 * qg.accounting.epsilon(qg.accounting.plan(MECHANISM, 0.5, 3), DELTA)
    for private in runs:
        assert private.epsilon(DELTA) >= spent


class Rank(SingleProcess):
    """One of two ranks, played by one process: it keeps what it would tell the other one."""

    world = 2

    def __init__(self, key: bytes) -> None:
        self.key, self.said = key, list[Facts]()

    def broadcast(self, make: Callable[[], T]) -> T:
        return self.key  # type: ignore[return-value]  # the key of the first rank is all that is sent here

    def agree(self, facts: Callable[[], Facts]) -> None:
        self.said.append(facts())


class Listed(Dataset[torch.Tensor]):
    """Records that are read one by one."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index]


def hashed(rows: torch.Tensor, key: bytes, *, listed: bool) -> object:
    rank = Rank(key)
    data = Listed(rows) if listed else TensorDataset(rows)
    check_same_records(rank, qg.PoissonBatches(data, rate=0.5, steps=1))
    return rank.said[0].equal["records"]


@pytest.mark.parametrize("listed", [False, True])
def test_the_same_records_in_another_order_do_not_pass(listed: bool) -> None:
    """tests/distributed/test_disagreement.py runs it with two processes."""
    key = b"k" * 32
    assert hashed(X, key, listed=listed) == hashed(X.clone(), key, listed=listed)
    assert hashed(X, key, listed=listed) != hashed(X.flip(0), key, listed=listed)
    swapped = X.clone()
    swapped[[3, 4]] = X[[4, 3]]
    assert hashed(X, key, listed=listed) != hashed(swapped, key, listed=listed)


def test_what_ranks_compare_tells_nothing_without_its_key() -> None:
    assert hashed(X, b"a" * 32, listed=False) != hashed(X, b"b" * 32, listed=False)
