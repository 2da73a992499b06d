"""Law 2: removing one sample moves each release's sum by at most its declared sensitivity, in floating point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads, ClippedSum
from tests.cases.methods import METHODS, MethodCase, method_ids
from tests.cases.world import losses_of, privatizer, records, run

CLIP = 0.5


def adversarial_rows(space: Mapping[str, torch.Size], seed: int) -> dict[str, Tensor]:
    """Gradients of norms 1e-12 … 1e12, in random, one-coordinate and one-block directions."""
    rng = torch.Generator().manual_seed(seed)
    norms = [1e-12, 1e-6, 1e-2, 0.4999, 0.5, 0.5001, 1.0, 3.0, 1e2, 1e4, 1e6, 1e9, 1e12, 1.0, 1e6, 1.0]
    size = sum(shape.numel() for shape in space.values())
    rows = torch.randn(len(norms), size, generator=rng, dtype=torch.float64)
    rows[-3] = torch.nn.functional.one_hot(torch.tensor(0), size)
    rows[-2] = torch.nn.functional.one_hot(torch.tensor(size - 1), size)
    rows[-1, size // 2 :] = 0
    rows = rows / rows.norm(dim=1, keepdim=True) * torch.tensor(norms, dtype=torch.float64)[:, None]
    parts = rows.float().split([shape.numel() for shape in space.values()], dim=1)
    return {name: p.reshape(len(norms), *space[name]) for name, p in zip(space, parts, strict=True)}


def distance(a: ClippedSum, b: ClippedSum) -> float:
    return math.sqrt(
        sum(float((a.blocks[n].double() - b.blocks[n].double()).square().sum()) for n in a.blocks)
    )


def blockwise(rows: dict[str, Tensor]) -> BlockwiseGrads:
    count = len(next(iter(rows.values())))
    return BlockwiseGrads({name: DenseGrad(block) for name, block in rows.items()}, count)


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_no_sample_moves_a_release_beyond_its_sensitivity(case: MethodCase) -> None:
    mechanism = case.build(CLIP).with_noise(1.0)
    with privatizer(mechanism, [[0], [1]]) as (private, batches, model):
        run_one_step(private, batches, model)  # so that methods with a history have one
        public = private.begin_step().public
        for seed, (index, release) in itertools.product(range(3), enumerate(mechanism.releases)):
            rows = adversarial_rows(public.space, seed)
            bound = release.clip.sensitivity(private.step)
            whole = private.begin_step().encoded_sum(index, blockwise(rows))
            assert whole.sensitivity == bound
            for left_out in range(16):
                others = {n: torch.cat([r[:left_out], r[left_out + 1 :]]) for n, r in rows.items()}
                moved = distance(whole, private.begin_step().encoded_sum(index, blockwise(others)))
                assert moved <= bound, f"release {index}, row {left_out} moves the sum by {moved} > {bound}"
        assert public.step == 1


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_one_sample_alone_stays_within_the_sensitivity_and_reaches_it(case: MethodCase) -> None:
    """Strict for a single row, where no other row's rounding hides anything; a clip far below C would waste budget."""
    mechanism = case.build(CLIP).with_noise(1.0)
    with privatizer(mechanism, [[0], [1]]) as (private, batches, model):
        run_one_step(private, batches, model)
        rows = adversarial_rows(private.begin_step().public.space, seed=9)
        reached = 0.0
        for index, release in enumerate(mechanism.releases):
            for row in range(16):
                one = private.begin_step().encoded_sum(
                    index, blockwise({n: r[row : row + 1] for n, r in rows.items()})
                )
                norm = math.sqrt(sum(float(block.double().square().sum()) for block in one.blocks.values()))
                assert norm <= release.clip.sensitivity(private.step)
                reached = max(reached, norm / release.clip.sensitivity(private.step))
        assert reached > 0.5


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_a_sample_with_a_non_finite_gradient_contributes_zero(case: MethodCase) -> None:
    mechanism = case.build(CLIP).with_noise(1.0)
    data = records()
    with privatizer(mechanism, [[0, 1], [2, 3]]) as (private, batches, model):
        run_one_step(private, batches, model)
        x, y = data[[4, 5, 6]]
        keep = torch.tensor([0, 2])
        recorder = Recorder(model)
        recorder.attach()
        without = recorder.collect(losses_of(model, x[keep], y[keep]))
        clean = [private.begin_step().encoded_sum(i, without) for i in range(len(mechanism.releases))]
        for poison in (float("nan"), float("inf"), -float("inf")):
            broken = x.clone()
            broken[1, 0, 2, 2] = poison
            with_poison = recorder.collect(losses_of(model, broken, y))
            for index, expected in enumerate(clean):
                got = private.begin_step().encoded_sum(index, with_poison)
                assert all(bool(block.isfinite().all()) for block in got.blocks.values())
                assert distance(got, expected) <= 1e-5 * expected.sensitivity


def run_one_step(private, batches, model) -> None:  # type: ignore[no-untyped-def]
    batch = next(iter(batches))
    for x, y in batch.split(8):
        private.backward(losses_of(model, x, y))
    private.release()


def test_the_whole_run_respects_it_too() -> None:
    """Gradients of a real model with samples scaled by 1e-6 … 1e6."""
    data = records()
    data.tensors[0].mul_(10.0 ** torch.linspace(-6, 6, len(data))[:, None, None, None])
    rows = list(range(len(data)))
    mechanism = METHODS[0].build(CLIP).with_noise(0.0)
    with privatizer(mechanism, [rows], data=data, rate=1.0) as (private, batches, model):
        whole = run(private, batches, model)[0]
    for left_out in (0, 17, 39):
        others = [row for row in rows if row != left_out]
        with privatizer(mechanism, [others], data=data, rate=1.0) as (private, batches, model):
            part = run(private, batches, model)[0]
        moved = math.sqrt(sum(float((whole[n] - part[n]).double().square().sum()) for n in whole)) * len(rows)
        assert moved <= CLIP


def test_a_poisoned_sample_in_the_very_first_batch_contributes_zero() -> None:
    """Before the engine has ever seen a clean batch of this model; a batch of only poisoned ones comes first."""
    data = records()
    data.tensors[0][1] = float("nan")
    data.tensors[0][3] = float("inf")
    mechanism = METHODS[0].build(CLIP).with_noise(0.0)
    with privatizer(mechanism, [[1], [1, 3], [0, 1, 2]], data=data) as (private, batches, model):
        *nothing, poisoned = run(private, batches, model)
    with privatizer(mechanism, [[0, 2]], data=data) as (private, batches, model):
        clean = run(private, batches, model)[0]
    assert all(float(block.abs().sum()) == 0.0 for step in nothing for block in step.values())
    for name in clean:
        assert torch.allclose(poisoned[name], clean[name], atol=1e-6), name
