"""Statistics where users are protected: one row a user, averaged and clipped once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import quietgrad as qg
from quietgrad._program import releasing
from quietgrad._program.statistics import Histograms, Mean, SecondMoments, Statistic
from quietgrad.audit.bounds import slope_over_noise

IDS = [0] * 6 + [1] * 2 + [2] + [3] * 7
STATISTICS: dict[str, Statistic] = {
    "mean": Mean(),
    "second": SecondMoments(),
    "histograms": Histograms((-1.0, 0.0, 1.0), 3),
}


def total(statistic: Statistic, values: Tensor, ids: list[int], most: int = 100) -> Tensor:
    """The clipped sum that is released, before its noise."""
    users = qg.PoissonSampler(len(ids), rate=1.0, steps=1, unit=ids, most_records=most).users
    clip = qg.FlatClip(statistic.bound)
    parts = [clip(rows, 0) for rows in releasing._rows(statistic, values, users)]
    return sum((next(iter(part.blocks.values())) for part in parts), torch.zeros(()))


def reference(statistic: Statistic, values: Tensor, ids: list[int]) -> Tensor:
    """One user after the other: the average of formed rows, clipped."""
    sums: list[Tensor] = []
    for user in sorted(set(ids)):
        mine = values[[i for i, one in enumerate(ids) if one == user]]
        (rows,) = statistic.rows(mine).dense().values()
        row = rows.double().mean(0)
        sums.append(row * min(1.0, statistic.bound / max(float(row.norm()), 1e-12)))
    return torch.stack(sums).sum(0)


def records(seed: int = 0) -> Float[Tensor, "n 3"]:
    return torch.randn(len(IDS), 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("chunk", [3, 4096])
def test_a_user_is_the_average_of_their_records_clipped_once(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releasing, "CHUNK", chunk)
    found, wanted = (f(STATISTICS[name], records(), IDS) for f in (total, reference))
    torch.testing.assert_close(found.double().flatten(), wanted.flatten(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_law_2_no_user_moves_the_sum_further_than_the_bound(name: str, scale: float) -> None:
    statistic, whole = STATISTICS[name], records()
    for user in range(4):
        mine = torch.tensor(IDS) == user
        without = torch.where(mine[:, None], torch.nan, whole)
        odd = torch.where(mine[:, None], scale * records(1).abs(), whole)
        moved = (total(statistic, odd, IDS) - total(statistic, without, IDS)).double().norm()
        assert float(moved) <= statistic.bound


def test_law_2_catches_users_that_are_added_and_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: one row a record, so that a user of many records moves the sum further."""
    monkeypatch.setattr(releasing, "pool", lambda grads, _: grads)
    same = torch.ones(len(IDS), 3)
    without = torch.where((torch.tensor(IDS) == 3)[:, None], torch.nan, same)
    assert float((total(Mean(), same, IDS) - total(Mean(), without, IDS)).norm()) > 2.0


def test_at_most_so_many_records_of_a_user_count() -> None:
    values = torch.zeros(len(IDS), 3)
    values[torch.tensor(IDS) == 3, 0] = torch.arange(7.0) / 10
    found = {round(float(total(Mean(), values, IDS, most=1)[0]), 3) for _ in range(40)}
    assert found <= {i / 10 for i in range(7)}
    assert len(found) > 1


def release(values: Tensor, ids: list[int], noise_multiplier: float) -> tuple[Tensor, float]:
    sampler = qg.PoissonSampler(len(ids), rate=1.0, steps=1, unit=ids, most_records=10)
    plan = {"it": qg.StatisticRelease(statistic=Mean(), share=0.5)}
    program = qg.Program(training=qg.methods.dp_sgd(), statistics=plan).with_noise(noise_multiplier)
    found = qg.Statistics(program, sampler).release("it", values)
    return found.blocks["mean"], 1 / program.multiplier("it", sampler)


def test_law_4_noise_is_that_of_the_number_of_users() -> None:
    width = 4000
    found, signal = release(torch.zeros(len(IDS), width), IDS, 2.0)
    assert float(found.std()) == pytest.approx(1 / (signal * 4), rel=0.06)


def test_the_audit_of_a_user_stays_below_the_claim_and_catches_rows_of_single_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user of eight records, there or not."""

    def found() -> tuple[float, float]:
        present, scores, claimed = np.arange(120) % 2.0, [], math.nan
        for there in present:
            block, claimed = release(torch.full((8, 1), there), [0] * 8, 0.4)
            scores.append(float(block.sum()))
        return slope_over_noise(present, np.array(scores), alpha=1e-5), claimed

    bound, claimed = found()
    assert 0.25 * claimed < bound <= claimed
    monkeypatch.setattr(releasing, "pool", lambda grads, _: grads)
    bound, claimed = found()
    assert bound > claimed
