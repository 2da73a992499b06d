"""Noise that is drawn where the model is: the CPU's integers, and no wait more than without it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._noise.banded import MixingSource, NoiseBlock
from quietgrad._noise.keyed import fill_keyed
from quietgrad._noise.sources import DeviceSource
from tests.cases.world import losses_of, privatizer, run, small_net
from tests.devices import stand_in
from tests.devices.axis import DEVICES, on_stand_in, refusing_mixed_devices

DRAWS = [list(range(9)), [], list(range(9, 23)), list(range(20, 30))]
DP_SGD = qg.methods.dp_sgd(clip=0.5)


class CountedKeys(DeviceSource):
    """The keys 0, 1, 2, … in the place of fresh ones."""

    private = False

    def __init__(self) -> None:
        self._drawn = 0

    def _new_key(self) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(32, "little")


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_gets_the_integers_of_the_cpu(device: str) -> None:
    for count, first in ((5_000, 0), (700, 1_027), (0, 3)):
        expected = torch.empty(count, dtype=torch.int32)
        fill_keyed(expected, bytes(32), first)
        found = torch.empty(count, dtype=torch.int32, device=device)
        with refusing_mixed_devices(device):
            fill_keyed(found, bytes(32), first)
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_gets_the_noise_of_the_cpu(device: str) -> None:
    def train(where: str) -> list[dict[str, Tensor]]:
        model = small_net(device=where)
        with privatizer(DP_SGD.with_noise(1.0), DRAWS, model=model, source=CountedKeys()) as made:
            return run(*made, micro=5)

    expected = train("cpu")
    with refusing_mixed_devices(device):
        found = train(device)
    for mine, theirs in zip(found, expected, strict=True):
        for name, grad in theirs.items():
            # Noise of σ = 1 is some thousand times the rounding of the sums.
            assert (mine[name].cpu() - grad).norm() <= 1e-5 * grad.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_banded_noise_is_mixed_where_it_was_drawn(device: str) -> None:
    def mix(where: str) -> list[Tensor]:
        source, block, found = CountedKeys(), NoiseBlock(1.0, 900, 2), list[Tensor]()
        for _ in range(4):
            mixing = MixingSource(source, (64, 30, 10), block)
            for part in (500, 400):
                out = torch.empty(part, dtype=torch.int32, device=where)
                mixing.fill(out)
                found.append(out.cpu())
            block = block.advance(mixing.mixed)
        return found

    with refusing_mixed_devices(device):
        found = mix(device)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, mix("cpu"), strict=True))


@on_stand_in
def test_a_step_waits_as_seldom_as_with_noise_of_the_cpu() -> None:
    draws = [list(range(5 * step, 5 * step + 10)) for step in range(6)]
    counts = []
    model = small_net(device=stand_in.NAME)
    with privatizer(DP_SGD.with_noise(1.0), draws, model=model, source=CountedKeys()) as (
        private,
        batches,
        _,
    ):
        for batch in batches:
            with stand_in.watching() as watched:
                for x, y in batch.split(5):
                    private.backward(losses_of(model, x, y))
                private.release()
            counts.append(watched.waits.total())
        assert private.explain().kernels == f"torch: there are no kernels for {stand_in.NAME}"
    assert min(counts) == 1
