"""`quietgrad train --device`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.train import train
from tests.devices.axis import DEVICES, refusing_mixed_devices
from tests.lab.tiny import CONFIG, write_config, write_data


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_trains_on_a_device_and_keeps_weights_that_load_anywhere(device: str, tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), [])
    with refusing_mixed_devices(device):
        outcome = train(config, tmp_path / "run", device=device)
    assert outcome.covered
    weights = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert {value.device.type for value in weights.values()} == {"cpu"}


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, data="nowhere.npz"), [])
    with pytest.raises(LabError, match="--device cuda:99 cannot be used"):
        train(config, tmp_path / "run", device="cuda:99")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(8,), pytest.param((1, 16, 16), marks=pytest.mark.slow)])
def test_the_linear_probe_encodes_and_trains_on_a_device(
    device: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).random((240, *shape), dtype=np.float32)
    moments = "mean" if len(shape) == 3 else "auto"  # made-up images take seconds
    text = CONFIG.replace('name = "dp_sgd"\nclip = 1.0', f'name = "quiet"\nmoments = "{moments}"')
    config = load_config(write_config(tmp_path, data=write_data(tmp_path, x=x), text=text), [])
    with refusing_mixed_devices(device):
        outcome = train(config, tmp_path / "run", device=device)
    assert outcome.covered
    weights = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert {value.device.type for value in weights.values()} == {"cpu"}


def test_the_linear_probe_refuses_a_device_that_is_not_there(tmp_path: Path) -> None:
    text = CONFIG.replace('name = "dp_sgd"\nclip = 1.0', 'name = "quiet"')
    with pytest.raises(LabError, match="--device cuda:99 cannot be used"):
        train(load_config(write_config(tmp_path, text=text), []), tmp_path / "run", device="cuda:99")
