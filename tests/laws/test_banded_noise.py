"""The laws for banded noise, of whole blocks: what a record adds shows in several releases together.

Whitened, the releases of a run are C·(x + noise)/s with s the accounted std. Noise is N(0, I) there, and a record that
takes part k times, bands apart, may move them by √k/σ in all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._noise.sources import SeededSource
from quietgrad._privatizer.research import Observer
from quietgrad._sampling.participation import group_members
from quietgrad.accounting import BandedEvent, Phase, delta
from quietgrad.schedules import Piecewise
from tests.cases.world import USERS, losses_of, privatizer, records, run, small_net
from tests.laws.test_law3_neighbours import CountingSource

BANDS, SIGMA, CLIP = 3, 1.5, 0.5
NOISE = qg.BandedNoise(coefficients=(64, 40, 25))
STEPS = 9
GROUPS = {"groups": BANDS}
RECORD = int(group_members(40, BANDS, 0)[1])
OTHERS = [[int(row) for row in group_members(40, BANDS, step % BANDS)[2:8:2]] for step in range(STEPS)]


class Recording(Observer):
    def __init__(self) -> None:
        self.steps: list[Released] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.steps.append(released[0])


def with_record(takes_part: Sequence[int]) -> list[list[int]]:
    return [[RECORD, *draw] if step in takes_part else draw for step, draw in enumerate(OTHERS)]


def mechanism(noise: qg.BandedNoise = NOISE, clip: qg.Clip | float = CLIP) -> qg.Mechanism:
    return replace(qg.methods.dp_sgd(clip=clip), noise=noise).with_noise(SIGMA)


def recorded(
    draws: list[list[int]], made: qg.Mechanism, data: TensorDataset | None = None, *, seed: int = 5
) -> list[Released]:
    seen = Recording()
    world = privatizer(made, draws, data=data, users=GROUPS, research=True, source=SeededSource(seed))
    with world as (private, batches, model):
        private.watch(seen)
        run(private, batches, model, micro=3)  # weights stay, so that later sums do not follow the record
    return seen.steps


def flat(released: Released) -> Tensor:
    return torch.cat([block.flatten().double() for block in released.blocks.values()])


def whitened(parts: Sequence[Tensor], released: Sequence[Released], blocks: Sequence[int]) -> Tensor:
    """C·x/s, where C begins anew with each block of so many steps."""
    c = np.array(NOISE.coefficients) / NOISE.norm
    whole = np.zeros((len(parts), len(parts)))
    first = 0
    for length in blocks:
        for t, j in itertools.product(range(length), range(BANDS)):
            if j <= t:
                whole[first + t, first + t - j] = c[j]
        first += length
    stds = torch.tensor([one.std for one in released], dtype=torch.float64)
    scaled = torch.stack(list(parts)) / stds[:, None]
    return torch.from_numpy(whole) @ scaled


def moved(
    made: qg.Mechanism,
    takes_part: Sequence[int],
    data: TensorDataset,
    blocks: Sequence[int] = (STEPS,),
) -> float:
    """How far the record moves all releases together, in standard deviations of the noise."""
    a, b = recorded(with_record(takes_part), made, data), recorded(OTHERS, made, data)
    assert [one.std for one in a] == [one.std for one in b]
    difference = [flat(x) - flat(y) for x, y in zip(a, b, strict=True)]
    return float(whitened(difference, a, blocks).norm())


def hostile(kind: str) -> TensorDataset:
    data = records()
    x, y = data.tensors
    if kind == "not a number":
        x[RECORD] = float("nan")
    elif kind == "all the same":
        x[:], y[:] = x[RECORD].clone(), y[RECORD].clone()
    else:
        x[RECORD] *= float(kind)
    return data


@pytest.mark.parametrize("kind", ["1e-12", "1", "1e6", "1e30", "not a number", "all the same"])
def test_law_2_a_record_of_one_step_moves_its_whole_block_by_the_sensitivity_at_most(kind: str) -> None:
    assert moved(mechanism(), [3], hostile(kind)) <= 1 / SIGMA


def test_law_2_is_tight_and_parts_that_are_bands_apart_add_up_in_square() -> None:
    data = hostile("1e6")
    assert moved(mechanism(), [3], data) > 0.97 / SIGMA
    assert moved(mechanism(), [0, 3, 6], data) == pytest.approx(math.sqrt(3) / SIGMA, rel=0.03)
    assert moved(mechanism(), [0, 3, 6], data) <= math.sqrt(3) / SIGMA


def test_law_2_sees_a_record_that_takes_part_too_often() -> None:
    """Replayed draws, which no sampler makes: the same test finds what the groups prevent."""
    assert moved(mechanism(), [3, 4, 5], hostile("1e6")) > 1.3 * math.sqrt(3) / SIGMA


@pytest.mark.parametrize("change", [2, 4])
def test_law_2_where_a_clip_changes_inside_of_a_block(change: int) -> None:
    """The record takes part before and after: a block of noise begins at the change."""
    made = mechanism(clip=qg.FlatClip(Piecewise((CLIP, 2 * CLIP), (change,))))
    assert moved(made, [0, 3, 6], hostile("1e6"), (change, STEPS - change)) <= math.sqrt(3) / SIGMA


def test_law_3_neighbouring_runs_draw_alike_and_write_the_same_ledger() -> None:
    seen = []
    for draws in (with_record([0, 3]), OTHERS):
        source = CountingSource()
        with privatizer(mechanism(), draws, users=GROUPS, source=source) as (private, batches, model):
            run(private, batches, model, micro=2, lr=0.1)
            seen.append((source.asked, private.ledger.phases, private.plan))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == STEPS


@pytest.mark.parametrize("users", [{}, USERS], ids=["records", "users"])
def test_law_4_whitened_releases_are_standard_normal(users: dict[str, object]) -> None:
    seen, steps = Recording(), 60
    world = privatizer(mechanism(), [[]] * steps, users={**GROUPS, **users}, research=True)
    with world as (private, batches, model):
        private.watch(seen)
        run(private, batches, model)
    white = whitened([flat(one) for one in seen.steps], seen.steps, (steps,))
    assert float(white.square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / white.numel()))
    assert stats.kstest(white.flatten().numpy(), "norm").pvalue > 1e-4
    for apart in range(1, BANDS + 2):
        product = white[apart:] * white[:-apart]
        assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())
    # What is released is wider, as the gain says.
    last = torch.stack([flat(one) / one.noise_std for one in seen.steps[20:]])
    assert float(last.square().mean()) == pytest.approx(1.0, abs=0.05)


def test_law_8_a_resumed_run_pays_again_for_what_it_makes_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    draws = with_record([0, 3, 6])
    model = small_net()

    def steps(private: qg.Privatizer, batches: qg.PoissonBatches, count: int) -> None:
        for _, batch in zip(range(count), batches, strict=False):
            for x, y in batch.split(4):
                private.backward(losses_of(model, x, y))
            private.release()

    with privatizer(mechanism(), draws, users=GROUPS, ledger=ledger, model=model) as (private, batches, _):
        steps(private, batches, 4)
        saved = private.state_dict()
        steps(private, batches, 1)  # lost: step 4, of group 1
        planned = private.plan
    with privatizer(mechanism(), draws, users=GROUPS, ledger=ledger, model=model) as (private, batches, _):
        private.load_state_dict(saved)
        steps(private, batches, 3)  # groups 1, 2 and 0: of group 1 that is the third time
        assert private.ledger.phases == planned == private.plan
        with pytest.raises(qg.PrivacyError, match="plan"):
            steps(private, batches, 1)


@pytest.mark.parametrize("steps", [3, 4])
def test_epsilon_against_integrals_over_all_releases(steps: int) -> None:
    """δ(ε) of T = 3 and 4 steps in two groups, without the argument that parts fall into blocks of their own.

    P is a mixture over all participations of the record, N(C·pattern, σ²I) in T dimensions, Q = N(0, σ²I).
    """
    c, sigma, rate, eps = np.array([0.8, 0.6]), 1.2, 0.4, 0.7
    matrix = np.diag(np.full(steps, c[0])) + np.diag(np.full(steps - 1, c[1]), -1)
    parts = range(0, steps, 2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60 if steps == 3 else 36)
    points = np.stack(np.meshgrid(*[nodes] * steps, indexing="ij"), -1).reshape(-1, steps) * sigma
    mass = np.prod(np.stack(np.meshgrid(*[weights] * steps, indexing="ij"), -1), -1).reshape(-1)
    mass /= mass.sum()
    ratio = np.zeros(len(points))
    for pattern in itertools.product((0, 1), repeat=len(parts)):
        mean = matrix[:, list(parts)] @ np.array(pattern)
        chance = math.prod(rate if one else 1 - rate for one in pattern)
        ratio += chance * np.exp((points @ mean - mean @ mean / 2) / sigma**2)
    by_integral = float(mass @ np.maximum(ratio - math.exp(eps), 0.0))
    event = BandedEvent(noise_multiplier=sigma, bands=2)
    claimed = delta([Phase(event=event, rate=rate, count=2)], eps)
    if steps % 2:  # the run ends before the last part of the record has shown in full
        assert claimed > by_integral
    else:
        assert claimed == pytest.approx(by_integral, rel=0.02)
