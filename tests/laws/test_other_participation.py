"""The laws where records take part other than by plain Poisson draws; banded noise has a file of its own beside this.

Law 0 and the plans of these schemes are in tests/sampling/test_participation_schemes.py. Adaptive clips are methods, so
that every law of this folder runs on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._privatizer.research import Observer
from quietgrad.accounting import Ledger, epsilon
from tests.cases.world import losses_of, privatizer, records, run, small_net
from tests.laws.test_law3_neighbours import CountingSource

SCHEMES: dict[str, dict[str, Any]] = {
    "groups": {"groups": 4},
    "at most": {"at_most": 12},
    "once an epoch": {"once_an_epoch": True},
}
CLIP, SIGMA, STEPS = 0.5, 1.3, 8
MECHANISM = qg.methods.dp_sgd(clip=CLIP).with_noise(SIGMA)


class Recording(Observer):
    def __init__(self) -> None:
        self.steps: list[Released] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.steps.append(released[0])


def batches_of(scheme: str, data: TensorDataset) -> qg.PoissonBatches:
    """The scheme's own draws, from a seed."""
    return qg.PoissonBatches(data, rate=0.25, steps=STEPS, seed=3, **SCHEMES[scheme])


def with_null(kind: str, scheme: str) -> TensorDataset:
    """Records of which one that takes part in the first step is large, or contributes nothing."""
    data = records()
    chosen = next(iter(batches_of(scheme, data).sampler))[0]
    data.tensors[0][chosen] *= 1e6 if kind == "large" else float("nan")
    return data


def releases(kind: str, scheme: str, sigma: float) -> tuple[list[Tensor], Any]:
    """What a run releases, times qN, and its ledger."""
    batches = batches_of(scheme, with_null(kind, scheme))
    model, source = small_net(), CountingSource()
    made = MECHANISM.with_noise(sigma)
    fixed: dict[str, Any] = {"noise_source": source, "public_seed": 7, "deterministic": True}
    with qg.Privatizer(model, made, batches, **fixed) as private:
        history = run(private, batches, model, micro=6)
        seen = source.asked, private.ledger.phases, private.plan
    return [10 * torch.cat([g.flatten().double() for g in step.values()]) for step in history], seen


@pytest.mark.parametrize("scheme", SCHEMES)
def test_law_2_a_record_moves_each_step_by_the_clip_and_a_block_once(scheme: str) -> None:
    (large, _), (null, _) = (releases(kind, scheme, 0.0) for kind in ("large", "null"))
    moved = [float((a - b).norm()) for a, b in zip(large, null, strict=True)]
    assert max(moved) <= CLIP * (1 + 1e-6)
    assert any(one > 0.97 * CLIP for one in moved)
    if scheme == "once an epoch":
        blocks = [moved[:4], moved[4:]]
        assert all(sum(one > 1e-6 for one in block) == 1 for block in blocks)
        assert math.hypot(*moved) <= math.sqrt(2) * CLIP * (1 + 1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_law_3_neighbouring_runs_differ_in_their_sums_alone(scheme: str) -> None:
    (_, first), (_, second) = (releases(kind, scheme, SIGMA) for kind in ("large", "null"))
    assert first == second
    assert len(first[0]) == STEPS


@pytest.mark.parametrize("scheme", SCHEMES)
def test_law_4_noise_is_what_the_event_says(scheme: str) -> None:
    """Empty draws: batches that are filled up hold rows that count nothing, so only noise is left."""
    seen = Recording()
    with privatizer(MECHANISM, [[]] * 40, users=SCHEMES[scheme], research=True) as (private, batches, model):
        private.watch(seen)
        run(private, batches, model)
        (event,) = {phase.event for phase in private.ledger.phases}
    noise = torch.stack([torch.cat([b.flatten().double() for b in r.blocks.values()]) for r in seen.steps])
    std = event.gaussian_precision**-0.5 * seen.steps[0].sensitivity
    assert stats.kstest((noise / std).flatten().numpy(), "norm").pvalue > 1e-4
    assert float((noise / std).square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / noise.numel()))
    product = (noise[1:] * noise[:-1]).mean() / std**2
    assert abs(float(product)) < 5 / math.sqrt(noise.numel())


def some(batches: qg.PoissonBatches, count: int) -> Iterator[Any]:
    return (batch for _, batch in zip(range(count), batches, strict=False))


def steps_of(private: qg.Privatizer, batches: qg.PoissonBatches, model: nn.Module, count: int) -> None:
    for batch in some(batches, count):
        for x, y in batch.split(6):
            private.backward(losses_of(model, x, y))
        private.release()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_law_8_a_resumed_run_never_costs_less(scheme: str, lost: int, tmp_path: Path) -> None:
    """After every resume, what is spent is at least that of the steps, and the plan is never exceeded."""
    path, model = tmp_path / "ledger.jsonl", small_net()

    def made() -> qg.PoissonBatches:
        return qg.PoissonBatches(records(), rate=0.25, steps=STEPS, **SCHEMES[scheme])

    batches = made()
    with qg.Privatizer(model, MECHANISM, batches, ledger=path) as private:
        planned = private.epsilon(1e-3)
        steps_of(private, batches, model, 3)
        saved = private.state_dict()
        steps_of(private, batches, model, lost)
    before = epsilon(Ledger.read(path).phases, 1e-3)
    batches = made()
    with qg.Privatizer(model, MECHANISM, batches, ledger=path) as private:
        private.load_state_dict(saved)
        left = private.steps_left
        assert left <= STEPS - 3
        steps_of(private, batches, model, left)
        assert before <= private.epsilon(1e-3, spent=True) <= planned
        with pytest.raises(qg.PrivacyError, match="plan"):
            steps_of(private, batches, model, STEPS)
    assert epsilon(Ledger.read(path).phases, 1e-3) <= planned
