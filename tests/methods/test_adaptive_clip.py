"""A clip that follows a quantile: where it settles, what it pays, groups, resume, and odd options."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import quietgrad as qg
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._noise.sources import SeededSource
from quietgrad._representations.adaptive_clip.clip_scale import CLIPPED
from tests.cases.world import losses_of, privatizer, records, run, small_net

DRAWS = [list(range(0, 40, 2)), list(range(1, 40, 2))] * 20


def bounds_of(private: qg.Privatizer) -> list[float]:
    return list(private.begin_step().codec(0).bounds)  # type: ignore[attr-defined]


def norms(model: torch.nn.Module) -> torch.Tensor:
    x, y = records().tensors
    rows = []
    for i in range(len(x)):
        grads = torch.autograd.grad(
            losses_of(model, x[i : i + 1], y[i : i + 1]).sum(), list(model.parameters())
        )
        rows.append(torch.cat([g.flatten() for g in grads]).norm())
    return torch.stack(rows)


@pytest.mark.parametrize(("quantile", "start"), [(0.5, 6.0), (0.2, 0.5), (0.9, 1.0)])
def test_the_bound_goes_to_the_quantile(quantile: float, start: float) -> None:
    mechanism = qg.methods.adaptive_clip(quantile=quantile, clip=start, learning_rate=0.3).with_noise(1e-3)
    with privatizer(mechanism, DRAWS, rate=0.5) as (private, batches, model):
        for step, batch in enumerate(batches):
            for x, y in batch.split(64):
                private.backward(losses_of(model, x, y))
            private.release()
            if step == len(DRAWS) - 2:
                break
        next(iter(batches))
        (bound,) = bounds_of(private)
    assert bound == pytest.approx(float(norms(small_net()).quantile(quantile)), rel=0.2)


def test_each_group_has_a_bound_of_its_own() -> None:
    mechanism = qg.methods.adaptive_clip(clip=1.0, learning_rate=0.5, groups=("", "head.")).with_noise(1e-3)
    with privatizer(mechanism, DRAWS[:20], rate=0.5) as (private, batches, model):
        for step, batch in enumerate(batches):
            for x, y in batch.split(64):
                private.backward(losses_of(model, x, y))
            private.release()
            if step == 18:
                break
        next(iter(batches))
        rest, head = bounds_of(private)
    assert rest != pytest.approx(head, rel=0.05)
    assert mechanism.releases[1].clip.sensitivity(0) == pytest.approx(math.sqrt(2) / 2, rel=0.006)


def test_the_shares_are_those_of_the_paper() -> None:
    """σ⁻² = σ_g⁻² + (2σ_b)⁻², σ_g in units of C and σ_b in records."""
    mechanism = qg.methods.adaptive_clip(share=0.04).with_noise(1.3)
    gradient, count = mechanism.releases
    sigma_g = mechanism.std(gradient, 0) / gradient.clip.sensitivity(0)
    # The count is widened for the clip's margin, as its sensitivity is.
    sigma_b = mechanism.std(count, 0) * 0.5 / count.clip.sensitivity(0)
    assert sigma_g**-2 + (2 * sigma_b) ** -2 == pytest.approx(1.3**-2)


def encoded_counts(rows: torch.Tensor, groups: tuple[str, ...] = ("",)) -> torch.Tensor:
    mechanism = qg.methods.adaptive_clip(clip=1.0, groups=groups).with_noise(1.0)
    model = torch.nn.Linear(3, 1, bias=False)
    data = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.zeros(4))
    with privatizer(mechanism, [[0]], model=model, data=data) as (private, batches, _):
        next(iter(batches))
        grads = BlockwiseGrads({"weight": DenseGrad(rows[:, None, :])}, len(rows))
        return private.begin_step().codec(1).encode(grads).dense()[CLIPPED]


def test_counts_of_odd_rows() -> None:
    rows = torch.tensor([[0.5, 0, 0], [3.0, 0, 0], [0, 0, 0], [float("nan"), 0, 0], [float("inf"), 1, 0]])
    assert encoded_counts(rows).flatten().tolist() == [0.5, -0.5, 0.0, 0.0, 0.0]


def test_a_resumed_run_goes_on_with_the_bound() -> None:
    mechanism = qg.methods.adaptive_clip(learning_rate=1.0).with_noise(1.0)
    with privatizer(mechanism, DRAWS[:6]) as (private, batches, model):
        for step, batch in enumerate(batches):
            for x, y in batch.split(64):
                private.backward(losses_of(model, x, y))
            private.release()
            if step == 2:
                break
        saved, ledger = private.state_dict(), private.ledger
        next(iter(batches))
        bound = bounds_of(private)
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    world = privatizer(mechanism, DRAWS[:6], ledger=ledger, source=SeededSource(9))
    with world as (private, batches, model):
        private.load_state_dict(torch.load(buffer, weights_only=True))
        next(iter(batches))
        assert bounds_of(private) == bound != [1.0]
        run(private, batches, model)
        assert private.ledger.phases == private.plan


def test_the_bound_stays_where_float32_can_guarantee_it() -> None:
    mechanism = qg.methods.adaptive_clip(clip=1.0, learning_rate=2.0, share=1e-4).with_noise(50.0)
    with privatizer(mechanism, [[0]] * 60) as (private, batches, model):
        run(private, batches, model)
        (bound,) = private.state_dict()["representations"]["0"]["bounds"]
    assert 1e-6 <= bound <= 1e6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantile": 1.0}, "quantile"),
        ({"share": 0.0}, "share"),
        ({"share": 0.6}, "less noise than the gradient"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"clip": -1.0}, "bound"),
        ({"groups": ()}, "prefixes"),
        ({"groups": ("", "")}, "prefixes"),
    ],
)
def test_odd_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qg.methods.adaptive_clip(**options)


def test_a_parameter_without_a_group_and_banded_noise_are_refused() -> None:
    mechanism = qg.methods.adaptive_clip(groups=("head.",)).with_noise(1.0)
    with privatizer(mechanism, [[0]]) as (private, _, _), pytest.raises(ValueError, match="No group"):
        private.begin_step()
    with pytest.raises(ValueError, match="ClipScale"):
        replace(qg.methods.adaptive_clip(), noise=qg.BandedNoise.square_root(2))
