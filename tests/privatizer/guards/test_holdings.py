"""The list of what a model holds is made again whenever a walk would find something else."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from quietgrad._guards.model_state import Holdings, held, mark


class Model(nn.Sequential):
    """Containers of every kind in its attributes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.kept: list[Any] = [0, {"deep": []}]
        self.queue: deque[Any] = deque([1])
        self.table: UserDict[str, Any] = UserDict({"a": 1})


CHANGES: dict[str, Callable[[Model], object]] = {
    "an attribute": lambda m: setattr(m[0], "last", torch.ones(2)),
    "an attribute of another type": lambda m: setattr(m[0], "in_features", torch.ones(2)),
    "a list": lambda m: m.kept.append(torch.ones(2)),
    "a list in a dictionary in a list": lambda m: m.kept[1]["deep"].append(torch.ones(2)),
    "a value in a list": lambda m: m.kept.__setitem__(0, torch.ones(2)),
    "a queue": lambda m: m.queue.append(torch.ones(2)),
    "a mapping of one's own": lambda m: m.table.__setitem__("a", torch.ones(2)),
    "a buffer": lambda m: m.register_buffer("mean", torch.ones(2)),
    "a buffer exchanged": lambda m: setattr(m[1], "running_mean", torch.ones(2)),
    "a module": lambda m: m.add_module("more", nn.Linear(2, 2)),
    "a parameter exchanged": lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(2, 2))),
    "all attributes": lambda m: setattr(m[0], "__dict__", {**vars(m[0]), "last": torch.ones(2)}),
}


def _same(a: Sequence[tuple[str, object]], b: Sequence[tuple[str, object]]) -> bool:
    return len(a) == len(b) and all(m == n and x is y for (m, x), (n, y) in zip(a, b, strict=True))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_exchanged_is_found(change: str) -> None:
    made = Model()
    holdings = Holdings(made)
    before = holdings.now()
    assert holdings.now() is before, "an unchanged model is walked through once"
    CHANGES[change](made)
    assert _same(holdings.now(), list(held(made)))
    assert not _same(holdings.now(), before)


@pytest.mark.parametrize("size", [3, 5000])
def test_bytes_are_read_where_they_are_now(size: int) -> None:
    weight = nn.Parameter(torch.zeros(size))
    first = mark(weight)
    assert first.same(weight, bytes_too=True)
    weight.data = torch.ones(size)
    assert not first.same(weight, bytes_too=True), "the same object with other bytes elsewhere"
    second = mark(weight)
    weight.data[size - 1] = 2.0
    assert not second.same(weight, bytes_too=True), "and there too"
