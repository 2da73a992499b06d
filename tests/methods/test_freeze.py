"""Freeze methods release exactly their equation, and their masks compose with the other representations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import flatten
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._representations.low_rank.low_rank import LowRank
from quietgrad._representations.masks.mask import RandomMask
from quietgrad.schedules import Cooling, Schedule
from tests.cases.world import losses_of, privatizer, public_losses, records, run, small_net

ROWS = [0, 3, 5, 8, 11]
DIVISOR = 10.0


def sample_gradients() -> Tensor:
    """[n, p] by a loop over samples, in float64."""
    model, data = small_net(torch.float64), records(torch.float64)
    rows = []
    for row in ROWS:
        x, y = data[[row]]
        grads = torch.autograd.grad(losses_of(model, x, y).sum(), list(model.parameters()))
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


def released_once(mechanism: Mechanism) -> Tensor:
    model = small_net(torch.float64)
    with privatizer(mechanism, [ROWS], model=model) as (private, batches, _):
        return flatten(run(private, batches, model)[0])


def clipped(rows: Tensor, norms: Tensor, bound: float) -> Tensor:
    return rows * ((1 - MARGIN) * bound / norms).clamp_max(1.0)[:, None]


@pytest.mark.parametrize("bound", [0.3, 1e6])
def test_random_freeze_masks_then_clips(bound: float) -> None:
    got = released_once(qg.methods.random_freeze(freeze=0.6, clip=bound).with_noise(0.0))
    kept = got != 0
    assert int(kept.sum()) == round(0.4 * len(got))
    rows = sample_gradients() * kept
    assert torch.allclose(got, clipped(rows, rows.norm(dim=1), bound).sum(0) / DIVISOR, rtol=1e-9)


@pytest.mark.parametrize("bound", [0.3, 1e6])
@pytest.mark.parametrize(
    ("method", "keep"),
    [
        (qg.methods.posterior_freeze(freeze=0.6, clip=0.3), 0.4),
        (qg.methods.random_k(keep=0.25, clip=0.3), 0.25),
    ],
)
def test_posterior_freeze_and_random_k_clip_then_mask(method: Mechanism, keep: float, bound: float) -> None:
    release = qg.Release(representation=method.releases[0].representation, clip=qg.FlatClip(bound))
    got = released_once(Mechanism(name="x", releases=(release,), noise_multiplier=0.0))
    kept = got != 0
    rows = sample_gradients()
    assert int(kept.sum()) == round(keep * len(got))
    assert torch.allclose(got, clipped(rows, rows.norm(dim=1), bound).sum(0) * kept / DIVISOR, rtol=1e-9)


def test_posterior_freeze_takes_per_group_clips_over_whole_blocks() -> None:
    bounds = {"": 0.2, "head.": 0.1}
    got = released_once(qg.methods.posterior_freeze(freeze=0.9, clip=qg.PerGroupClip(bounds)).with_noise(0.0))
    rows, start, total = sample_gradients(), 0, torch.zeros(len(got), dtype=torch.float64)
    head = sum(p.numel() for name, p in small_net().named_parameters() if name.startswith("head."))
    start = len(got) - head
    for part, bound in ((slice(0, start), 0.2), (slice(start, None), 0.1)):
        total[part] = clipped(rows[:, part], rows[:, part].norm(dim=1), bound).sum(0)
    assert torch.allclose(got, total * (got != 0) / DIVISOR, rtol=1e-9)


@pytest.mark.parametrize("method", [qg.methods.random_freeze, qg.methods.posterior_freeze])
def test_frozen_coordinates_stay_exactly_zero_under_noise(method) -> None:  # type: ignore[no-untyped-def]
    got = released_once(method(freeze=0.7, clip=1.0).with_noise(2.0))
    assert int((got != 0).sum()) == round(0.3 * len(got))
    noise = got[got != 0]
    assert float(noise.std()) == pytest.approx(2.0 / DIVISOR, rel=5 / math.sqrt(2 * len(noise)))


def test_a_mask_depends_on_the_public_seed_and_not_on_the_data() -> None:
    mechanism = qg.methods.random_freeze(freeze=0.5).with_noise(1.0)

    def mask(rows: list[int], seed: int) -> Tensor:
        with privatizer(mechanism, [rows], public_seed=seed) as (private, batches, model):
            return flatten(run(private, batches, model)[0]) != 0

    assert torch.equal(mask([0, 1], 7), mask([5, 6, 7], 7))
    assert not torch.equal(mask([0, 1], 7), mask([0, 1], 8))


def dimensions(mechanism: Mechanism) -> list[int]:
    """Coordinates that receive noise, per release."""
    with privatizer(mechanism.with_noise(1.0), [[0]]) as (private, _, _):
        return [report.dimension for report in private.explain().releases]


def test_inside_a_mask_everything_shrinks_by_the_density() -> None:
    gep = qg.methods.gep(public_losses, rank=4, clip=1.0, residual_clip=1.0)
    total = dimensions(gep)[1]
    embedding, residual = dimensions(gep @ RandomMask(0.7))
    assert (embedding, residual) == (4, round(0.3 * total))
    with privatizer((gep @ RandomMask(0.7)).with_noise(1.0), [[0]]) as (private, _, _):
        private.explain()
        public = private.begin_step().public
        composed: Any = public.codec(private.mechanism.releases[0].representation)
        basis = sum(group.rows.numel() for group in composed.outer.basis.groups.values())
    assert basis == 4 * round(0.3 * total)


def test_a_mask_on_carriers_shrinks_rgps_release() -> None:
    low_rank = LowRank(rank=1)
    whole = dimensions(qg.methods.random_freeze(freeze=0.0) @ low_rank)[0]
    assert dimensions(qg.methods.random_freeze(freeze=0.5) @ low_rank)[0] == round(0.5 * whole)


def test_gep_with_freeze_returns_the_masked_mean_gradient_without_noise() -> None:
    mechanism = qg.methods.gep(public_losses, rank=4, clip=1e6, residual_clip=1e6) @ RandomMask(0.6)
    got = released_once(mechanism.with_noise(0.0))
    kept = got != 0
    assert int(kept.sum()) <= round(0.4 * len(got))
    assert torch.allclose(got, sample_gradients().sum(0) * kept / DIVISOR, atol=1e-8)


@pytest.mark.parametrize("freeze", [0.5, Cooling(0.5, epochs=2)])
def test_a_new_mask_makes_an_old_basis_stale(freeze: float | Schedule) -> None:
    """A basis kept for many steps is of other coordinates after the mask changed: it is made anew, whatever its age."""
    gep = qg.methods.gep(public_losses, rank=4, clip=1.0, residual_clip=1.0, refresh_every=100)
    mechanism = (gep @ RandomMask(freeze)).with_noise(1.0)
    refreshed = []
    with privatizer(mechanism, [[0, 1]] * 12) as (private, batches, model):
        for batch in batches:
            for x, y in batch.split(8):
                private.backward(losses_of(model, x, y))
            private.release()
            states = private.state_dict()["representations"].values()
            refreshed += [state["refreshed"] for state in states if "refreshed" in state]
    assert refreshed == [0] * 4 + [4] * 4 + [8] * 4


def test_pdp_sgd_inside_a_mask_projects_the_kept_coordinates_alone() -> None:
    mechanism = qg.methods.pdp_sgd(public_losses, rank=3, clip=1e6) @ RandomMask(0.6)
    model = small_net(torch.float64)
    with privatizer(mechanism.with_noise(0.0), [ROWS], model=model) as (private, batches, _):
        got = flatten(run(private, batches, model)[0])
        frozen = got == 0
    assert int(frozen.sum()) >= round(0.6 * len(got))
    true = sample_gradients().sum(0) / DIVISOR * ~frozen
    # An orthogonal projection of the masked gradient: shorter, and the rest is perpendicular to it.
    assert float(got.norm()) < float(true.norm())
    assert abs(float(got @ (true - got))) < 1e-9 * float(true.norm() ** 2)


def test_momentum_keeps_moving_frozen_coordinates() -> None:
    """As in the paper: the velocity of a frozen coordinate decays, it is not cut."""
    mechanism = qg.methods.random_freeze(freeze=0.5, redraw="step").with_noise(1.0)
    with privatizer(mechanism, [[0, 1], [2, 3]]) as (private, batches, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for batch in batches:
            for x, y in batch.split(8):
                private.backward(losses_of(model, x, y))
            private.release()
            before = flatten({name: p.detach().clone() for name, p in model.named_parameters()})
            optimizer.step()
        now = flatten({name: p.detach() for name, p in model.named_parameters()})
        frozen = flatten({name: p.grad for name, p in model.named_parameters() if p.grad is not None}) == 0
    assert bool((now[frozen] != before[frozen]).any())
