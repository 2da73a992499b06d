"""Laws D1 and D2 for methods on tables of embeddings, also where the table is the output layer too.

Masks, subspaces and carriers have code of their own for rows that are touched by index.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._noise.sources import SeededSource
from tests.cases import methods
from tests.cases.methods import METHODS, MethodCase
from tests.cases.world import losses_of
from tests.devices.axis import DEVICES, refusing_mixed_devices, to_device
from tests.devices.models import CLASSES, LENGTH, WORDS, make_model, make_records

OF_THE_SMALL_NET = {"gip", "rgp_random"}
"""Built for its number of coordinates, or for names of its layers."""
SHORT = {"random_freeze_per_step", "top_groups", "gep_freeze", "rgp"}
CASES = [
    pytest.param(name, case, id=f"{case.name}, {name}", marks=() if case.name in SHORT else pytest.mark.slow)
    for case in METHODS
    for name in ("transformer", "tied transformer")
    if case.name not in OF_THE_SMALL_NET
]
JUMPS = {"datalens": 0.2}  # signs of the largest entries: rounding exchanges two of nearly equal size
TOLERANCE = 1e-3  # of the norm: a basis of nearly equal directions turns with its rounding


def public_text(model: nn.Module) -> Tensor:
    """Losses on public tokens with random labels."""
    rng, device = torch.Generator().manual_seed(3), next(model.parameters()).device
    ids = torch.randint(WORDS, (24, LENGTH), generator=rng).to(device, non_blocking=True)
    labels = torch.randint(CLASSES, (24,)).to(device, non_blocking=True)
    return F.cross_entropy(model(ids), labels, reduction="none")


def train(name: str, case: MethodCase, device: str) -> list[Tensor]:
    """What three steps release, with noise so small that it hides no error."""
    mechanism = case.build(1.0).with_noise(1e-3)
    model, released = to_device(make_model(name, layers=1), device), []
    draws = [list(range(9)), [], list(range(9, 23))]
    batches = qg.PoissonBatches.replay(make_records(name), draws, rate=0.25, device=device)
    with qg.Privatizer(model, mechanism, batches, noise_source=SeededSource(5), public_seed=7) as private:
        for batch in batches:
            for x, y in batch.split(5):
                private.backward(losses_of(model, x, y))
            private.release()
            released.append(
                torch.cat([p.grad.cpu().flatten() for p in model.parameters() if p.grad is not None])
            )
    return released


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_device_gets_the_gradients_of_the_cpu(
    name: str, case: MethodCase, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "public_losses", public_text)
    expected = train(name, case, "cpu")
    with refusing_mixed_devices(device):
        found = train(name, case, device)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine - theirs).norm() <= JUMPS.get(case.name, TOLERANCE) * theirs.norm()
