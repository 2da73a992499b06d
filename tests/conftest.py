"""Tests run in two processes on small tensors; more threads would only get in each other's way."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from tests.annotations import WANTED, executed

torch.set_num_threads(1)
os.environ.pop("QUIETGRAD_CACHE", None)  # what one test has measured is none of the next one's


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _annotations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Executed if this run wants it, except where wrong types are passed on purpose."""
    on_purpose = request.node.get_closest_marker("wrong_types") is not None
    with executed(on=WANTED and not on_purpose):
        yield
