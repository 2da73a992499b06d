"""Law 3: neighbouring runs with the same randomness differ only through the clipped sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._noise.sources import SeededSource
from quietgrad._privatizer.research import Observer
from quietgrad.audit.traces import TracedNoise, TracedRelease
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import USERS, privatizer, run

WITH = [[0, 3, 5], [5], [1, 2, 5, 9], [7]]
WITHOUT = [[row for row in draw if row != 5] for draw in WITH]


class CountingSource(SeededSource):
    """Remembers how many integers were asked for, in order."""

    def __init__(self) -> None:
        super().__init__(11)
        self.asked: list[int] = []

    def fill(self, out: Tensor) -> None:
        self.asked.append(len(out))
        super().fill(out)


class FirstStep(Observer):
    """The released blocks of the first step, before the model changes."""

    def __init__(self) -> None:
        self.released: list[Released] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        if step == 0:
            self.released = released


def traced_run(case: MethodCase, draws: list[list[int]], users: dict[str, Any]):  # type: ignore[no-untyped-def]
    source, first = CountingSource(), FirstStep()
    sums: list[list[Tensor]] = []
    mechanism = case.build(0.5).with_noise(2.0)

    def note(release: TracedRelease) -> None:
        if release.step == 0:
            sums.append([block.clone() for block in release.total.blocks.values()])

    traced = replace(mechanism, noise=TracedNoise(mechanism.noise, note))
    with privatizer(traced, draws, source=source, research=True, users=users) as (private, batches, model):
        private.watch(first)
        run(private, batches, model, micro=2, lr=0.05)
        ledger = private.ledger.phases
    return source.asked, ledger, first.released, sums


@pytest.mark.parametrize(("users", "units"), [({}, 40), (USERS, 10)], ids=["records", "users"])
@pytest.mark.parametrize("case", BY_FAMILY)
def test_same_draws_same_ledger_and_a_difference_only_in_the_sums(
    case: MethodCase, users: dict[str, Any], units: int
) -> None:
    asked, ledger, released, sums = traced_run(case, WITH, users)
    asked_without, ledger_without, released_without, sums_without = traced_run(case, WITHOUT, users)
    later = (
        slice(1) if case.name == "top_groups" else slice(None)
    )  # ranks groups of all sizes by past releases
    assert asked[later] == asked_without[later]
    assert asked, "noise was never drawn"
    assert ledger == ledger_without
    divisor = 0.25 * units
    for a, b, sum_a, sum_b in zip(released, released_without, sums, sums_without, strict=True):
        assert a.std == b.std
        assert a.sensitivity == b.sensitivity
        got_a, got_b = (
            torch.cat([block.flatten().double() for block in part.blocks.values()]) for part in (a, b)
        )
        s_a, s_b = (torch.cat([block.flatten() for block in total]) for total in (sum_a, sum_b))
        seen = (got_a != 0) & (got_b != 0)  # a selection may release other coordinates of the neighbour
        assert bool(seen.any())
        assert torch.allclose((got_a - got_b)[seen], ((s_a - s_b) / divisor)[seen], atol=1e-6)


@pytest.mark.parametrize("case", BY_FAMILY)
def test_an_empty_batch_draws_noise_and_counts(case: MethodCase) -> None:
    asked, ledger, *_ = traced_run(case, [[], []], {})
    assert len(asked) >= 2
    assert sum(phase.count for phase in ledger) == 2
