"""Tests run in two processes on small tensors; more threads would only get in each other's way."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ["QUIETGRAD_CACHE"] = "off"  # what one test has measured is none of the next one's


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
