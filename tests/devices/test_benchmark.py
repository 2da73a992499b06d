"""The script that people with a GPU run and send back works on the stand-in device."""

from __future__ import annotations

import pytest
import torch
from benchmarks.device import measure, noise_rate
from benchmarks.models import CLASSES, Setting, images
from torch import nn

from quietgrad._noise.sources import DeviceSource
from tests.devices.axis import DEVICES


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_is_measured(device: str) -> None:
    setting = Setting("linear", lambda: nn.Linear(8, CLASSES), 6, images(8))
    result = measure(setting, 6, torch.device(device))
    assert result.parameters == 8 * CLASSES + CLASSES
    assert result.difference < 1e-5
    assert result.plain_ms > 0
    assert result.private_ms > 0


def test_the_rate_of_noise_is_measured() -> None:
    assert noise_rate(1000, DeviceSource(), torch.device("cpu")) > 0
