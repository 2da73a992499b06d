"""The devices that tests run on, and how a model gets there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tests.devices import stand_in

NOT_COMPILED = "the stand-in device is not compiled (python -m tests.devices.build; needs g++ or clang++)"

STAND_IN = pytest.param(
    stand_in.NAME, marks=pytest.mark.skipif(not stand_in.install(), reason=NOT_COMPILED), id="stand-in"
)
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"), id="cuda"
)
DEVICES = [STAND_IN, CUDA]
"""Every device beside the CPU, as an argument of `parametrize`."""

on_stand_in = pytest.mark.skipif(not stand_in.install(), reason=NOT_COMPILED)


def to_device(model: nn.Module, device: str) -> nn.Module:
    """Move a model; parameters that are tied stay tied.

    torch makes new parameters when it moves them to a device of its "PrivateUse1" kind, unless it may swap them.
    """
    is_tied = len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(is_tied and device == stand_in.NAME)
    try:
        return model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


@contextmanager
def refusing_mixed_devices(device: str) -> Iterator[None]:
    """Raise where an operator mixes devices (law D2). CUDA does so by itself."""
    if device != stand_in.NAME:
        yield
        return
    with stand_in.watching() as watched:
        yield
    assert not watched.mixed, watched.mixed
