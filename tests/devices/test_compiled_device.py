"""Compiled models on a device: backwards run in a thread of the device's, with options of its own."""

from __future__ import annotations

import pytest
import torch

from quietgrad._capture.recorder import Recorder
from tests.capture.test_compiled import losses, mlp
from tests.devices.axis import DEVICES


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_model_gets_the_gradients_of_the_uncompiled_one(device: str) -> None:
    model, x = mlp().to(device), torch.randn(6, 6, device=device)
    found = []
    for options in (None, {"backend": "aot_eager", "dynamic": True}):
        recorder = Recorder(model, deterministic=True, compile_options=options)
        recorder.attach()
        found.append(recorder.collect(losses(model, x)))
        recorder.detach()
    torch._dynamo.reset()
    for name, block in found[0].blocks.items():
        torch.testing.assert_close(found[1].blocks[name].dense(), block.dense())
