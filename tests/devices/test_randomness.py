"""Dropout, autocast and recorded calls on a device: its own generator and its own precision, never the CPU's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from quietgrad._noise.sources import SeededSource
from tests.cases.inside import recorder_of
from tests.cases.world import losses_of, public_losses, records, small_net
from tests.devices.axis import DEVICES, refusing_mixed_devices


class Dropped(nn.Module):
    """A module without an adapter: its calls are repeated with the random numbers that they had."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.tanh() @ self.weight.T, 0.5)


def state_of(device: str) -> Tensor:
    return torch.get_device_module(device).get_rng_state()


@pytest.mark.parametrize("device", DEVICES)
def test_a_repeated_call_draws_the_dropout_of_the_device(device: str) -> None:
    torch.manual_seed(0)
    model, x = Dropped().to(device), torch.randn(5, 6).to(device)
    recorder = Recorder(model, deterministic=True)
    recorder.attach()
    before = torch.get_rng_state()
    with refusing_mixed_devices(device):
        losses = model(x).sum(1)
        after = state_of(device)
        expected = [torch.autograd.grad(loss, model.weight, retain_graph=True)[0] for loss in losses]
        rows = recorder.collect(losses).dense()["weight"]
    torch.testing.assert_close(rows.cpu(), torch.stack(expected).cpu())
    assert torch.equal(torch.get_rng_state(), before), "the CPU's generator has nothing to do with it"
    assert torch.equal(state_of(device), after), "a repeated call leaves no trace"


@pytest.mark.parametrize("device", DEVICES)
def test_public_losses_leave_the_generator_of_the_device_alone(device: str) -> None:
    mechanism = qg.methods.gep(public_losses, rank=4, clip=1.0, residual_clip=0.5).with_noise(1.0)
    batches = qg.PoissonBatches.replay(records(), [[0, 1, 2]], rate=0.25, device=device)
    model = small_net(device=device)
    with qg.Privatizer(model, mechanism, batches, noise_source=SeededSource(1)) as private:
        before, on_device = torch.get_rng_state(), state_of(device)
        private.begin_step()
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(state_of(device), on_device)


class Wrapped(nn.Module):
    """A linear layer that only the general fallback knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 36) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1).tanh(), self.weight * 1.5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("build", [small_net, Wrapped], ids=["layers", "fallback"])
def test_autocast_of_the_device_trains(build: type[nn.Module], device: str) -> None:
    torch.manual_seed(0)
    model = build().to(device)
    batches = qg.PoissonBatches.replay(records(), [list(range(8)), [], [3, 4]], rate=0.25, device=device)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1e-3)
    with (
        refusing_mixed_devices(device),
        qg.Privatizer(model, mechanism, batches, noise_source=SeededSource(1)) as private,
    ):
        for batch in batches:
            for x, y in batch.split(4):
                with torch.autocast(device, dtype=torch.bfloat16):
                    losses = losses_of(model, x, y)
                private.backward(losses)
                assert recorder_of(private).precision == torch.bfloat16
            private.release()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
