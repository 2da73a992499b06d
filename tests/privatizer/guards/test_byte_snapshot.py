"""Whatever is exchanged in a model, or written to, is found by name; a checksum sees every element."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietgrad._guards.byte_snapshot import ByteSnapshot, checksum
from quietgrad._guards.model_tensors import ModelTensor, model_tensors


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


def snapshot(model: nn.Module, *, read_parameters: bool = False) -> ByteSnapshot:
    return ByteSnapshot(list(model_tensors(model.named_modules())), read_parameters=read_parameters)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_exchanged_is_found(change: str) -> None:
    made = Model()
    before = snapshot(made)
    assert before.find_change(model_tensors(made.named_modules()), read_bytes=True) is None
    CHANGES[change](made)
    assert before.find_change(model_tensors(made.named_modules()), read_bytes=False) is not None


def test_a_parameter_that_lies_elsewhere_is_found_without_reading_it() -> None:
    weight = nn.Parameter(torch.zeros(5))
    before = ByteSnapshot([ModelTensor("weight", weight, True)], read_parameters=False)
    weight.data = torch.zeros(5)
    assert before.find_change([ModelTensor("weight", weight, True)], read_bytes=False) == "weight"


@pytest.mark.parametrize("size", [3, 50_000])
@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("read_parameters", [False, True])
def test_bytes_are_read_where_they_are_now(size: int, is_parameter: bool, read_parameters: bool) -> None:
    """`.data` writes do not count: of parameters they are seen where these are read, of all others always."""
    tensor = ModelTensor("one", nn.Parameter(torch.zeros(size)), is_parameter)
    assert isinstance(tensor.value, Tensor)
    for place in (0, size - 1):
        before = ByteSnapshot([tensor], read_parameters=read_parameters)
        tensor.value.data[place] += 1.0
        assert before.find_change([tensor], read_bytes=False) is None
        seen = before.find_change([tensor], read_bytes=True)
        assert seen == (None if is_parameter and not read_parameters else "one")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (16,), (5, 7), (0,)])
def test_a_checksum_sees_every_element(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    before = checksum(tensor)
    assert before == checksum(tensor.clone())
    for place in range(tensor.numel()):
        other = tensor.clone()
        other.view(-1)[place] = 1
        assert checksum(other) != before


def test_a_checksum_sees_a_queue_that_is_rolled_along() -> None:
    queue = torch.randn(8, 4)
    assert checksum(queue.roll(1, 0)) != checksum(queue)
    assert checksum(queue.t()) != checksum(queue)
