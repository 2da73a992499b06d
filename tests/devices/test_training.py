"""`quietgrad train --device`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.train import train
from tests.devices.axis import DEVICES, refusing_mixed_devices
from tests.lab.tiny import CONFIG, write_config


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


def test_the_linear_probe_says_that_it_trains_on_the_cpu(tmp_path: Path) -> None:
    text = CONFIG.replace('name = "dp_sgd"\nclip = 1.0', 'name = "quiet"')
    with pytest.raises(LabError, match="Leave --device out"):
        train(load_config(write_config(tmp_path, text=text), []), tmp_path / "run", device="cuda")
