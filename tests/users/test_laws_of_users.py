"""Laws 1 and 2 where the unit is a user: gradients are pooled before the clip, for every layer and method."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._noise.sources import SeededSource
from quietgrad._privatizer.pooling import Pooling, pool
from quietgrad.audit import NeighbourReport, audit_mechanism, compare_neighbours
from tests.cases.layers import LAYERS, LayerCase
from tests.cases.methods import BY_FAMILY, METHODS, MethodCase, method_ids
from tests.cases.world import USERS, losses_of, privatizer, records, run, small_net
from tests.laws.test_law1_per_sample import N, by_every_algorithm, captured, reference
from tests.laws.test_law2_sensitivity import CLIP, adversarial_rows, blockwise, distance, run_one_step


def pooling(*counts: int, first: int = 0) -> Pooling:
    return Pooling(np.array(counts), 1.0 / np.array(counts), first)


def by_hand(rows: Tensor, pool: Pooling) -> Tensor:
    users = rows[pool.rows].split(pool.counts.tolist())
    return torch.stack([mine.sum(0) * weight for mine, weight in zip(users, pool.weights, strict=True)])


# ---- law 1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("users", [pooling(2, 1, first=1), pooling(2, 2)], ids=["cut", "even"])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_pooled_gradients_equal_the_loop_over_users(case: LayerCase, users: Pooling) -> None:
    expected = {name: by_hand(rows, users) for name, rows in reference(case).items()}
    grads = pool(captured(case, case.model(), case.batch(N)), users)
    for pooled in (grads, *by_every_algorithm(grads, chunk=1).values()):
        check_users(pooled, expected, users.users)


def check_users(grads: BlockwiseGrads, expected: dict[str, Tensor], users: int) -> None:
    weights = torch.linspace(0.5, 1.0, users, dtype=torch.float64)
    truth = sum(rows.flatten(1).square().sum(1) for rows in expected.values())
    torch.testing.assert_close(grads.squared_norms(), truth)
    for name, total in grads.weighted_sum(weights).items():
        torch.testing.assert_close(total, torch.tensordot(weights, expected[name], 1))
        torch.testing.assert_close(grads.blocks[name].dense(), expected[name])


@pytest.mark.parametrize("micro", [1, 3, 8])
@pytest.mark.parametrize("case", BY_FAMILY)
def test_micro_batches_may_cut_through_users(case: MethodCase, micro: int) -> None:
    """Against one user at a time, each of whose gradients autograd averages."""
    released = [release_of_users(case, size)[0] for size in (64, micro)]
    for name, block in released[0].items():
        torch.testing.assert_close(block, released[1][name], rtol=1e-9, atol=1e-9)


@functools.cache
def release_of_users(case: MethodCase, micro: int) -> list[dict[str, Tensor]]:
    model = small_net(torch.float64)
    batches = qg.PoissonBatches.replay(records(torch.float64), [[0, 1, 2, 3]], rate=0.5, **USERS)
    mechanism = case.build(CLIP).with_noise(0.0 if case.name != "gip" else 1e-3)
    with qg.Privatizer(
        model, mechanism, batches, noise_source=SeededSource(1), deterministic=True, public_seed=7
    ) as private:
        return run(private, batches, model, micro=micro)


@pytest.mark.parametrize("pooled", ["mean", "sum"])
def test_a_release_is_the_clipped_sum_of_pooled_users(pooled: str) -> None:
    model, data = small_net(torch.float64), records(torch.float64)
    batches = qg.PoissonBatches.replay(
        data, [[0, 1, 2, 3]], rate=0.5, unit=USERS["unit"], most_records=20, pooled=pooled
    )
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=CLIP).with_noise(0.0), batches) as private:
        released = run(private, batches, model, micro=7)[0]
    parameters, total = list(model.parameters()), torch.zeros(371, dtype=torch.float64)
    for user in range(4):
        x, y = (tensor[torch.tensor(USERS["unit"]) == user] for tensor in data.tensors)
        losses = losses_of(model, x, y)
        grads = torch.autograd.grad(losses.mean() if pooled == "mean" else losses.sum(), parameters)
        flat = torch.cat([g.flatten() for g in grads])
        total += flat * min(1.0, (1 - MARGIN) * CLIP / float(flat.norm()))
    torch.testing.assert_close(torch.cat([g.flatten() for g in released.values()]), total / 5)


# ---- law 2 --------------------------------------------------------------------------------------------------

COUNTS = (1, 5, 3, 7)


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_no_user_moves_a_release_beyond_its_sensitivity(case: MethodCase) -> None:
    mechanism = case.build(CLIP).with_noise(1.0)
    with privatizer(mechanism, [[0], [1]]) as (private, batches, model):
        run_one_step(private, batches, model)
        rows = adversarial_rows(private.begin_step().public.space, 4)
        users = {name: block.split(COUNTS) for name, block in rows.items()}
        for index, release in enumerate(mechanism.releases):
            bound = release.clip.sensitivity(private.step)
            whole = private.begin_step().encoded_sum(index, pool(blockwise(rows), pooling(*COUNTS)))
            for left_out in range(len(COUNTS)):
                kept = [p for p in range(len(COUNTS)) if p != left_out]
                others = blockwise({n: torch.cat([parts[p] for p in kept]) for n, parts in users.items()})
                pooled = pool(others, pooling(*(COUNTS[p] for p in kept)))
                moved = distance(whole, private.begin_step().encoded_sum(index, pooled))
                assert moved <= bound, f"release {index}, user {left_out} moves the sum by {moved} > {bound}"


@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_user_with_a_non_finite_record_contributes_zero(case: MethodCase) -> None:
    mechanism = case.build(CLIP).with_noise(1.0)
    with privatizer(mechanism, [[0], [1]]) as (private, batches, model):
        run_one_step(private, batches, model)
        rows = adversarial_rows(private.begin_step().public.space, 4)
        for block in rows.values():
            block[3] = float("nan")
        users = {name: torch.cat([block[:1], block[6:]]) for name, block in rows.items()}
        for index in range(len(mechanism.releases)):
            with_nan = private.begin_step().encoded_sum(index, pool(blockwise(rows), pooling(*COUNTS)))
            without = private.begin_step().encoded_sum(index, pool(blockwise(users), pooling(1, 3, 7)))
            assert distance(with_nan, without) <= 1e-5 * without.sensitivity


# ---- a planted bug, and the audits that see it ----------------------------------------------------------------


def neighbours(privatizer: type[qg.Privatizer]) -> NeighbourReport:
    return compare_neighbours(
        small_net(),
        qg.methods.dp_sgd(clip=CLIP).with_noise(2.0),
        records(),
        losses_of,
        rate=0.5,
        record=3,
        others=(0, 1, 2),
        loss_scales=(1e4,),
        privatizer=privatizer,
        **USERS,
    )


class ClipsRecords(qg.Privatizer):
    """The planted bug: users are drawn, but each record is clipped on its own."""

    def pool(self, grads, first=0, counts=None):  # type: ignore[no-untyped-def]
        return grads


def test_a_clip_per_record_is_caught_by_neighbouring_runs() -> None:
    assert neighbours(qg.Privatizer).passed
    caught = neighbours(ClipsRecords)
    assert {difference.kind for difference in caught.differences} == {"sensitivity"}
    assert caught.largest_change > 2


@pytest.mark.parametrize(
    ("privatizer", "verdict"), [(qg.Privatizer, "consistent"), (ClipsRecords, "violated")]
)
def test_canaries_that_are_users_catch_a_clip_per_record(
    privatizer: type[qg.Privatizer], verdict: str
) -> None:
    report = audit_mechanism(
        small_net(),
        qg.methods.dp_sgd(clip=CLIP).with_noise(1.0),
        records=2_000,
        rate=0.05,
        steps=40,
        delta=1e-5,
        most_records=6,
        scores=2_000,
        audited_steps=20,
        privatizer=privatizer,
        seed=0,
    )
    assert report.verdict == verdict, str(report)


def test_users_of_one_record_are_captured_as_records_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is pooled of them, so that their gradients may be taken during the backward."""
    pools: list[bool] = []
    collect = Recorder.collect

    def noted(self: Recorder, losses: Tensor, pool: Any = None, **options: Any) -> BlockwiseGrads:
        if not private.independence.is_asking:
            pools.append(pool is not None)
        return collect(self, losses, pool, **options)

    monkeypatch.setattr(Recorder, "collect", noted)
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))
    for users, cut in ((np.arange(12), 5), (np.array([*range(11), 10]), 12), (np.arange(12) // 2, 5)):
        model = torch.nn.Linear(3, 2)
        batches = qg.PoissonBatches(TensorDataset(x, y), rate=1.0, steps=1, unit=users, most_records=2)
        with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
            for batch in batches:
                for rows, labels in batch.split(cut):
                    private.backward(torch.nn.functional.cross_entropy(model(rows), labels, reduction="none"))
                private.release()
    assert pools == [False] * 3 + [True] + [True] * 3
