"""Who is drawn, grouped or left out must follow from the numbers of records alone.

A sampler that put records into groups by their labels, or left out those with large inputs, would tell something of a
record by the draws of others. ε counts draws that are independent of what records hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import quietgrad as qg
from quietgrad._sampling import participation
from quietgrad._sampling.participation import group_members
from tests.cases.world import losses_of, privatizer, records, small_net

OPTIONS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "groups": {"groups": 4},
    "at most": {"at_most": 12},
    "once an epoch": {"once_an_epoch": True},
}


class Watched(Dataset[Any]):
    """Writes down which records are read."""

    def __init__(self, data: TensorDataset) -> None:
        self.data, self.read = data, list[int]()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return self.data[row]


def draws_of(data: TensorDataset, options: dict[str, Any]) -> tuple[list[list[int]], list[int]]:
    watched = Watched(data)
    batches = qg.PoissonBatches(watched, rate=0.25, steps=8, seed=3, **options)
    return list(batches.sampler), watched.read


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_draws_read_no_record_and_do_not_follow_what_they_hold(options: dict[str, Any]) -> None:
    data, other = records(), records()
    other.tensors[0].mul_(-7.0)
    other.tensors[1].fill_(0)
    (draws, read), (same, _) = draws_of(data, options), draws_of(other, options)
    assert draws == same
    assert read == []


def label_groups(data: TensorDataset) -> Callable[[int, int, int], Any]:
    """Planted bug: groups by label."""
    labels = data.tensors[1]

    def members(_: int, groups: int, group: int) -> Any:
        return torch.nonzero(labels % groups == group).flatten().numpy()

    return members


def test_groups_by_label_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = records(), records()
    other.tensors[1].copy_((other.tensors[1] + 1) % 3)
    found = []
    for one in (data, other):
        monkeypatch.setattr(participation, "group_members", label_groups(one))
        found.append(draws_of(one, {"groups": 3})[0])
    assert found[0] != found[1]


def test_a_replayed_group_is_that_of_its_number() -> None:
    """A resumed run and another process find the same record in the same group."""
    assert group_members(40, 4, 1).tolist() == group_members.__wrapped__(40, 4, 1).tolist()


def test_padding_does_not_tell_how_many_were_drawn() -> None:
    """Shapes and ledger are the same for draws of 0 and of 9 records; how often the loop is asked may differ."""
    shown = []
    for draw in ([], list(range(9))):
        mechanism = qg.methods.dp_sgd().with_noise(1.0)
        world = privatizer(mechanism, [draw], users={"at_most": 12}, model=small_net())
        with world as (private, batches, model):
            (batch,) = list(zip(range(1), batches, strict=False))
            sizes = []
            for x, y in batch[1].split(6):
                sizes.append(len(x))
                private.backward(losses_of(model, x, y))
            private.release()
            shown.append((sizes[0], set(sizes), len(batch[1]), private.ledger.phases))
    assert shown[0] == shown[1]
