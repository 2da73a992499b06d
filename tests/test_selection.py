"""What tests/conftest.py chooses: which tests execute annotations, and where a run with a time limit stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


class Item:
    """What is read of a test."""

    path = "tests/laws/test_x.py"

    def __init__(self, name: str, **params: Any) -> None:
        self.nodeid, self.callspec = f"{self.path}::{name}", SimpleNamespace(params=params)


def test_each_function_and_each_case_has_its_first_and_last_test() -> None:
    conv, linear = SimpleNamespace(name="conv"), SimpleNamespace(name="linear")
    items: list[Any] = [
        Item(f"test_{number}[{case.name}-{seed}]", case=case, seed=seed)
        for number in range(3)
        for case in (conv, linear)
        for seed in range(3)
    ]
    by_function = conftest._first_and_last(items, conftest._function)
    assert len(by_function) == 6
    by_case = conftest._first_and_last(items, conftest._case)
    assert by_case == {items[0], items[14], items[3], items[17]}


def begin(limit: float | None) -> None:
    item: Any = SimpleNamespace(config=SimpleNamespace(getoption=lambda _: limit))
    conftest.pytest_runtest_setup(item)


def test_no_test_starts_after_the_limit() -> None:
    begin(None)
    begin(1e9)
    with pytest.raises(pytest.skip.Exception, match="no time left of --seconds 0"):
        begin(0.0)
