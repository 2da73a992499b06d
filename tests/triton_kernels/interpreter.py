"""Where device code runs in tests: on a GPU if there is one, else in Triton's interpreter on tensors of the CPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""`tests/conftest.py` turns the interpreter on where there is no GPU."""
WIDTH = 128 if DEVICE.type == "cuda" else 1 << 11
"""Elements of a program: the interpreter takes as long for many as for few."""
