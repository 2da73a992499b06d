"""Laws D1 to D3 for every method: a device gets the CPU's gradients, mixes nothing, and rarely makes the host wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.cases.methods import BY_FAMILY, METHODS, MethodCase
from tests.cases.world import losses_of, privatizer, public_losses, run, small_net
from tests.devices import stand_in
from tests.devices.axis import DEVICES, on_stand_in, refusing_mixed_devices

DRAWS = [list(range(9)), [], list(range(9, 23)), list(range(20, 30))]
TOLERANCE = 2e-5  # of the norm: kernels differ in rounding, the noise is equal in every bit
JUMPS = {"datalens": 0.1}  # signs of the largest entries: rounding exchanges two of nearly equal size


def train(case: MethodCase, device: str) -> list[dict[str, Tensor]]:
    """Train with noise so small that it hides no error."""
    mechanism = case.build(1.0)
    if mechanism.noise_multiplier is None:
        mechanism = mechanism.with_noise(1e-3)
    with privatizer(mechanism, DRAWS, model=small_net(device=device)) as (private, batches, model):
        return run(private, batches, model, micro=5, lr=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_device_gets_the_gradients_of_the_cpu(case: MethodCase, device: str) -> None:
    expected = train(case, "cpu")
    with refusing_mixed_devices(device):
        released = train(case, device)
    for mine, theirs in zip(released, expected, strict=True):
        assert {name: grad.device.type for name, grad in mine.items()} == dict.fromkeys(theirs, device)
        difference = torch.cat([(mine[name].cpu() - grad).flatten() for name, grad in theirs.items()])
        size = torch.cat([grad.flatten() for grad in theirs.values()]).norm()
        assert difference.norm() <= JUMPS.get(case.name, TOLERANCE) * size


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", [qg.methods.gep, qg.methods.pdp_sgd])
def test_public_gradients_that_are_not_finite_are_left_out(method: Any, device: str) -> None:
    """On a device that is seen when the Gram matrices arrive, and the basis is made again."""

    def broken(model: nn.Module) -> Tensor:
        losses = public_losses(model)
        return torch.where(torch.arange(len(losses), device=losses.device) == 3, torch.nan, 1.0) * losses

    case = MethodCase("broken", lambda clip: method(broken, rank=6, clip=clip).with_noise(1e-3))
    for mine, theirs in zip(train(case, device), train(case, "cpu"), strict=True):
        for name, grad in theirs.items():
            assert bool(grad.isfinite().all())
            assert (mine[name].cpu() - grad).norm() <= 1e-3 * grad.norm()


WAITS = {
    "dp_sgd": 1,
    "dp_sgd_per_group": 1,
    "dp_sgd_automatic": 1,
    "rgp": 1,
    "rgp_paper": 1,
    "rgp_left": 1,
    "rgp_random": 1,
    "dp_power_sgd": 1,
    "dp_power_sgd_feedback": 1,
    "gep": 2,
    "gep_groups": 2,
    "gep_joint": 2,
    "biased_gep": 2,
    "pdp_sgd": 3,
    "rpdp_sgd": 1,
    "random_freeze": 1,
    "random_freeze_per_step": 1,
    "ranked_freeze": 2,
    "posterior_freeze": 1,
    "random_k": 1,
    "gip": 2,
    "top_groups": 2,
    "top_groups_paid": 3,
    "datalens": 1,
    "datalens_values": 1,
    "gep_freeze": 2,
    "pdp_sgd_freeze": 3,
    "rgp_freeze": 1,
    "adaptive_clip": 2,
    "adaptive_clip_groups": 2,
    "preconditioned": 1,
    "preconditioned_both_sides": 3,
    "preconditioned_freeze": 1,
    "preconditioned_gep": 2,
    "preconditioned_rgp": 1,
    "preconditioned_coordinates": 3,
}
"""How often the host waits for the device in a step of two micro-batches. These numbers may only fall."""


@on_stand_in
@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_step_waits_as_seldom_as_it_did(case: MethodCase) -> None:
    counts = []
    mechanism = case.build(1.0)
    draws = [list(range(2 * step, 2 * step + 10)) for step in range(8)]
    if mechanism.noise_multiplier is None:
        mechanism = mechanism.with_noise(1.0)
    with privatizer(mechanism, draws, model=small_net(device=stand_in.NAME)) as (private, batches, model):
        for batch in batches:
            with stand_in.watching() as watched:
                for x, y in batch.split(5):
                    private.backward(losses_of(model, x, y))
                private.release()
            counts.append(watched.waits)
    # The first steps ask whether records influence each other, and so do a few later ones. Some methods learn a basis
    # in every second step: of eight, the fourth from below is such a step, and none that asks.
    usual = sorted(counts, key=lambda waits: waits.total())[3]
    assert usual.total() == WAITS[case.name], f"lower WAITS if this is less, else see {dict(usual)}"


def test_every_method_has_its_number_of_waits_and_none_above_three() -> None:
    assert max(WAITS.values()) <= 3
    assert WAITS.keys() == {case.name for case in METHODS}


DOCUMENTED = {
    "DP-SGD, RGP, DP-PowerSGD, RPDP-SGD, random masks, DataLens, preconditioning": (
        "dp_sgd rgp dp_power_sgd rpdp_sgd random_freeze random_k datalens preconditioned"
    ),
    "GEP, ranked masks, GIP, adaptive clips": (
        "gep gep_groups gep_joint biased_gep ranked_freeze gip adaptive_clip"
    ),
    "PDP-SGD, top groups, preconditioning that is measured anew": (
        "pdp_sgd top_groups top_groups_paid preconditioned_both_sides preconditioned_coordinates"
    ),
}


def test_the_page_says_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    for methods, names in DOCUMENTED.items():
        counts = [WAITS[name] for name in names.split()]
        least, most = min(counts), max(counts)
        said = f"{least}" if least == most else f"{least} to {most}"
        assert f"| {methods} | {said} |" in page
