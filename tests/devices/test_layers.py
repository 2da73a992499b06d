"""Laws D1 and D2 for every layer: on a device, norms, sums and gradients equal the CPU's loop over samples."""

from __future__ import annotations

import pytest
import torch

from quietgrad._capture.recorder import Recorder
from tests.cases.layers import LAYERS, LayerCase
from tests.devices.axis import DEVICES, refusing_mixed_devices, to_device
from tests.reference import looped

N = 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_on_a_device_equal_the_loop_on_the_cpu(case: LayerCase, device: str) -> None:
    expected = looped(case.model(), case.batch(N), case.losses, N)
    truth = sum(rows.flatten(1).square().sum(1) for rows in expected.values())
    weights = torch.linspace(0.0, 1.0, N, dtype=torch.float64)
    model, inputs = to_device(case.model(), device), tuple(x.to(device) for x in case.batch(N))
    recorder = Recorder(model, deterministic=True)
    recorder.attach()
    for _ in range(2):  # the first batch is analysed, the second uses what was found
        with refusing_mixed_devices(device):
            grads = recorder.collect(case.losses(model, inputs))
            squared, total = grads.squared_norms(), grads.weighted_sum(weights.to(device))
            rows = grads.dense()
        torch.testing.assert_close(squared.cpu(), truth)
        for name, theirs in expected.items():
            assert rows[name].device.type == total[name].device.type == device
            torch.testing.assert_close(rows[name].cpu(), theirs)
            torch.testing.assert_close(total[name].cpu(), torch.tensordot(weights, theirs, 1))
    recorder.detach()
