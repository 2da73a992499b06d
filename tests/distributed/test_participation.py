"""Banded noise, cut draws, epochs and adaptive clips on several ranks: one draw, one ledger, one release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._collective import Reducer, SingleProcess
from quietgrad._noise.sources import SeededSource
from quietgrad._sampling.participation import group_members
from tests.cases.world import RECORDS, privatizer, records, run, small_net
from tests.distributed.launch import launch, values

STEPS = 6
BANDED = replace(qg.methods.dp_sgd(clip=0.5), noise=qg.BandedNoise(coefficients=(64, 40, 25)))
SCHEMES: dict[str, tuple[qg.Mechanism, dict[str, Any]]] = {
    "banded": (BANDED.with_noise(1.5), {"groups": 3}),
    "at most": (qg.methods.dp_sgd(clip=0.5).with_noise(1.5), {"at_most": 12}),
    "once an epoch": (qg.methods.dp_sgd(clip=0.5).with_noise(1.5), {"once_an_epoch": True}),
    "adaptive clip": (qg.methods.adaptive_clip(clip=0.5, share=0.1).with_noise(1.5), {}),
}
DRAWS = [[int(row) for row in group_members(RECORDS, 3, step % 3)[step::2]] for step in range(STEPS)]


def replayed(reducer: Reducer) -> dict[str, list[dict[str, Tensor]]]:
    """What each scheme releases for the same draws and the same noise."""
    history = {}
    for name, (mechanism, options) in SCHEMES.items():
        source = SeededSource(5 if reducer.rank == 0 else 6)  # rank 0 alone draws
        with privatizer(mechanism, DRAWS, users=options, reducer=reducer, source=source) as parts:
            history[name] = run(*parts, lr=0.1)
    return history


def drawn(reducer: Reducer) -> dict[str, list[tuple[list[int], int]]]:
    """The rows of this rank and how many of them count, step by step, under fresh entropy."""
    found = {}
    for name, (mechanism, options) in SCHEMES.items():
        batches = qg.PoissonBatches(records(), rate=0.25, steps=STEPS, **options)
        model, seen = small_net(), list[tuple[list[int], int]]()
        with qg.Privatizer(model, mechanism, batches, reducer=reducer) as private:
            for step, rows in enumerate(batches.sampler):
                used = batches.sampler.used(step)
                seen.append((rows, len(rows) if used is None else used))
            assert private.plan == qg.accounting.plan(mechanism, batches)
        found[name] = seen
    return found


def on_rank(_: int) -> tuple[dict[str, Any], dict[str, Any]]:
    reducer = qg.distributed.AllReduce()
    return replayed(reducer), drawn(reducer)


@pytest.fixture(scope="module")
def ranks() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return values(launch(2, on_rank, timeout=150))


@pytest.mark.parametrize("name", SCHEMES)
def test_ranks_release_what_one_process_does(
    name: str, ranks: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    alone = replayed(SingleProcess())[name]
    for history, _ in ranks:
        for mine, reference in zip(history[name], alone, strict=True):
            for key in reference:
                # Rounding each rank's part to the grid moves a coordinate by a step, 10⁻⁶ of the noise.
                assert torch.allclose(mine[key], reference[key], atol=1e-5, rtol=0), (name, key)


@pytest.mark.parametrize("name", SCHEMES)
def test_ranks_share_one_draw(name: str, ranks: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    parts = [seen[name] for _, seen in ranks]
    whole = []
    for step in range(STEPS):
        used = [rows[:count] for rows, count in (part[step] for part in parts)]
        assert not set(used[0]) & set(used[1])
        whole.append(sorted(used[0] + used[1]))
        if name == "at most":
            assert sum(len(part[step][0]) for part in parts) == 12
        if name == "banded":
            assert set(whole[-1]) <= set(group_members(RECORDS, 3, step % 3).tolist())
    if name == "once an epoch":
        assert sorted(row for rows in whole[:4] for row in rows) == list(range(RECORDS))
