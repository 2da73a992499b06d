"""Law D3: how often the host waits for a device grows neither with layers nor with micro-batches."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._noise.sources import SeededSource
from tests.cases.world import losses_of
from tests.devices import stand_in
from tests.devices.axis import DEVICES, on_stand_in, refusing_mixed_devices, to_device
from tests.devices.models import CLASSES, MODELS, SIDE, make_model, make_records

STEPS, OWN = 5, "a module of one's own"


class Scaled(nn.Module):
    """A linear model with a scale that no layer of torch holds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.scale = nn.Linear(SIDE * SIDE, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.flatten(1))) * self.scale


def train(
    name: str, device: str, *, layers: int = 2, micro: int = 5, noise: float = 1.0
) -> tuple[list[Counter[str]], Tensor]:
    """Train for some steps; what each step waited for, and the last gradient."""
    model = to_device(Scaled() if name == OWN else make_model(name, layers), device)
    draws = [list(range(5 * step, 5 * step + 10)) for step in range(STEPS)]
    batches = qg.PoissonBatches.replay(make_records(name), draws, rate=0.25, device=device)
    mechanism, waits = qg.methods.dp_sgd(clip=0.5).with_noise(noise), list[Counter[str]]()
    with qg.Privatizer(model, mechanism, batches, noise_source=SeededSource(5), public_seed=7) as private:
        for batch in batches:
            with stand_in.watching() as watched:
                for x, y in batch.split(micro):
                    private.backward(losses_of(model, x, y))
                private.release()
            waits.append(watched.waits)
    return waits, torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


@on_stand_in
@pytest.mark.parametrize("name", MODELS)
def test_a_step_waits_once_whatever_its_layers_and_micro_batches(name: str) -> None:
    for layers, micro in ((1, 10), (4, 10), (2, 2)):
        waits, _ = train(name, stand_in.NAME, layers=layers, micro=micro)
        # The first steps ask whether records influence each other, and so do a few later ones.
        least = min(waits, key=Counter.total)
        assert least.total() == 1, least


@on_stand_in
@pytest.mark.parametrize("micro", [10, 2])
def test_a_module_without_an_adapter_waits_once_for_each_call(micro: int) -> None:
    """It is run again, sample by sample, and its outputs are compared."""
    waits, _ = train(OWN, stand_in.NAME, micro=micro)
    least = min(waits, key=Counter.total)
    assert least.total() == 1 + 10 // micro, least


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*MODELS, OWN])
def test_models_get_the_gradients_of_the_cpu(name: str, device: str) -> None:
    _, expected = train(name, "cpu", noise=1e-3) if device != "cpu" else (None, torch.zeros(0))
    with refusing_mixed_devices(device):
        _, found = train(name, device, noise=1e-3)
    assert (found - expected).norm() <= 1e-3 * expected.norm()
