"""Guards on a device: what a model keeps of private records is refused there too, and odd devices are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.cases.world import losses_of, records
from tests.devices.axis import DEVICES, on_stand_in
from tests.devices.stand_in import NAME

Keep = Callable[["Remembering", Tensor], None]
LONG = 1 << 15  # float32 numbers: beyond what the guard copies, so that sums are compared


class Remembering(nn.Module):
    """Keeps something of its inputs."""

    def __init__(self, keep: Keep) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)
        self.register_buffer("short", torch.zeros(36))
        self.register_buffer("long", torch.zeros(LONG))
        self.attribute = torch.zeros(36)
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.keep(self, x.flatten(1).sum(0))
        return self.head(x.flatten(1))


def keep_in(name: str, place: slice = slice(None), *, counted: bool = False) -> Keep:
    """Add to part of a buffer; through `.data`, torch counts no write."""

    def keep(model: Remembering, total: Tensor) -> None:
        buffer = model.get_buffer(name)
        part = (buffer if counted else buffer.data)[place]
        part.add_(total[: len(part)])

    return keep


def keep_in_head(model: Remembering, total: Tensor) -> None:
    model.head.weight.data[0] += 1e-3 * total


def keep_in_attribute(model: Remembering, total: Tensor) -> None:
    model.attribute = total


KEEP: dict[str, Keep] = {
    "a buffer": keep_in("short", counted=True),
    "a buffer through .data": keep_in("short"),
    "one number of a long buffer": keep_in("long", slice(7, 8)),
    "the last number of a long buffer": keep_in("long", slice(-1, None)),
    "an attribute": keep_in_attribute,
    "a parameter through .data": keep_in_head,
}


def release(model: nn.Module, device: str) -> None:
    batches = qg.PoissonBatches.replay(records(), [[0, 1, 2, 3]], rate=0.25, device=device)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for x, y in batch.split(2):
                private.backward(losses_of(model, x, y))
            private.release()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP.keys())
def test_a_model_that_remembers_is_refused(keep: Keep, device: str) -> None:
    model = Remembering(keep).to(device)
    model.attribute = model.attribute.to(device)
    with pytest.raises(qg.PrivacyError, match="changed between the forward and the release"):
        release(model, device)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_that_remembers_nothing_is_accepted(device: str) -> None:
    model = Remembering(lambda *_: None).to(device)
    release(model, device)
    assert all(p.grad is not None for p in model.parameters())


@on_stand_in
def test_parameters_on_two_devices_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Linear(4, 3).to(NAME))
    with pytest.raises(ValueError, match=r"'1.weight' is on cpu and '2.weight' on standin:0.*one device"):
        release(model, "cpu")


@on_stand_in
def test_data_on_another_device_than_the_model_are_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        release(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).to(NAME), "cpu")


class OnMps(nn.Parameter):
    """Says that it is on a device without float64."""

    @property
    def device(self) -> torch.device:
        return torch.device("mps")

    @device.setter
    def device(self, _: torch.device) -> None: ...


def test_a_device_without_float64_is_refused_with_the_reason() -> None:
    model = nn.Linear(36, 3, bias=False)
    model.weight = OnMps(model.weight.detach())
    with pytest.raises(ValueError, match=r"on mps, which has no float64.*CPU or to a CUDA device"):
        qg.Privatizer(
            model,
            qg.methods.dp_sgd(clip=1.0).with_noise(1.0),
            qg.PoissonBatches(records(), rate=0.5, steps=1),
        )
