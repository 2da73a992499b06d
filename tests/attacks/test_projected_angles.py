"""Noise subtraction through a projection: in the coordinates of the basis, GEP's noise is as plain as DP-SGD's.

The basis is a function of public data and of the public seed, which every checkpoint holds. The adversary runs a twin
under that seed, with empty batches and noise of a seed of his own: what it releases is known noise in an unknown basis,
and least squares give the basis to float32's precision. In it he looks at angles, as in `test_shared_angle`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.attacks.harness import CHANCE, TRIALS, clipped_sum, coins, hits, read
from tests.attacks.targets import ALL, INPUTS, OTHERS, Target, records
from tests.attacks.test_shared_angle import off_grid

RANK, SIGMA = 64, 20.0
KEPT = 10_000


def public_losses(model: nn.Module) -> Tensor:
    losses: Tensor = model(torch.randn(256, INPUTS, generator=torch.Generator().manual_seed(3)))
    return losses


def biased_gep() -> qg.Mechanism:
    return qg.methods.biased_gep(public_losses, rank=RANK, refresh_every=KEPT).with_noise(SIGMA)


def gep() -> qg.Mechanism:
    return qg.methods.gep(public_losses, rank=RANK, refresh_every=KEPT).with_noise(SIGMA)


def run(
    mechanism: qg.Mechanism, draws: list[list[int]], source: str | qg.SeededSource, seed: int | None = None
) -> tuple[int, list[Tensor]]:
    """The public seed of a run and p.grad·qN of its steps; a seed from another run's checkpoint may be given."""
    model = Target("float32")
    batches = qg.PoissonBatches.replay(records(), draws, rate=1.0)
    with qg.Privatizer(model, mechanism, batches, noise_source=source, deterministic=True) as private:
        saved = private.state_dict()
        if seed is not None:
            private.load_state_dict({**saved, "public_seed": seed})
        seen = []
        for batch in batches:
            for rows in batch.split(64):
                private.backward(model(*rows))
            private.release()
            seen.append(read(model) * len(records()))
        return saved["public_seed"], seen


def basis_under(seed: int) -> Tensor:
    """B `[k, p]` of a run with this public seed, from releases of nothing but known noise."""
    _, noise = run(biased_gep(), [[]] * (4 * RANK), qg.SeededSource(9), seed)
    source = qg.SeededSource(9)
    known = torch.stack([source.integers(RANK).double() for _ in noise])
    basis: Tensor = torch.linalg.lstsq(known, torch.stack(noise)).solution
    assert float((known @ basis - torch.stack(noise)).norm()) < 1e-3 * float(torch.stack(noise).norm())
    return basis / basis.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(("build", "share"), [(biased_gep, 1.0), (gep, 0.5)])
def test_angles_in_the_basis_do_not_tell_the_true_sum(
    build: Callable[[], qg.Mechanism], share: float
) -> None:
    """On 0.1: 85% for biased_gep; chance for gep, whose residual rounds the last bits away."""
    truth = coins(TRIALS)
    seed, seen = run(build(), [ALL if there else OTHERS for there in truth], "default")
    basis = basis_under(seed)
    coordinates = torch.linalg.pinv(basis.T)
    absent, present = (
        basis @ clipped_sum(lambda: Target("float32"), records(), rows) for rows in (OTHERS, ALL)
    )
    std = SIGMA / math.sqrt(share)

    def suspicion(release: Tensor) -> float:
        away, there = (
            off_grid((coordinates @ release - candidate) / std, RANK // 2) for candidate in (absent, present)
        )
        difference = float(away.mean() - there.mean())
        return difference if abs(difference) > 0.06 else 0.0

    assert hits(seen, truth, suspicion) <= CHANCE
