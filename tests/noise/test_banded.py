"""Banded noise: exact integers, the covariance that was promised, blocks that begin anew, and what it costs."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import quietgrad as qg
from quietgrad._collective import default_reducer
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import ClippedSum
from quietgrad._noise.banded import MixingSource, NoiseBlock
from quietgrad._noise.bands import (
    WHOLE,
    final_square,
    inverse,
    mean_square,
    optimise,
    square_root,
    workload,
)
from quietgrad._noise.gaussian import widen_noise
from quietgrad._noise.sources import SeededSource
from quietgrad._sampling.participation import group_members
from quietgrad.accounting import BandedEvent, Charge, GaussianEvent, Phase, epsilon, plan
from tests.cases.inside import noise_state
from tests.cases.world import privatizer, records, run, small_net

NOISE = qg.BandedNoise(coefficients=(64, 40, 25))


def releases(
    sums: Sequence[torch.Tensor], noise: qg.BandedNoise = NOISE, seed: int = 3, std: float = 2.0
) -> list[qg.Released]:
    """Release sums of sensitivity 1 one after the other."""
    source, state, out = SeededSource(seed), qg.NoiseState(), []
    for step, total in enumerate(sums):
        draw = qg.NoiseDraw(std=std, divisor=1.0, source=source, reducer=default_reducer(), step=step)
        released, state = noise.release(ClippedSum(blocks={"w": total}, sensitivity=1.0), draw, state)
        out.append(released)
    return out


def dense(noise: qg.BandedNoise, steps: int) -> np.ndarray:
    """C, normalised to columns of norm 1, as a matrix."""
    c = np.array(noise.coefficients) / noise.norm
    return np.sum([np.diag(np.full(steps - j, c[j]), -j) for j in range(min(len(c), steps))], axis=0)


def test_what_is_released_is_a_function_of_the_accounted_integers_alone() -> None:
    """X + w, recomputed in Python integers from Y_t = Σ m_j X_{t−j} + z_t, agrees to the last bit."""
    rng = torch.Generator().manual_seed(0)
    sums = [torch.randn(50, generator=rng, dtype=torch.float64) for _ in range(9)]
    got = releases(sums)
    wide = widen_noise(std=2.0, sensitivity=1.0, coordinates=50, steps=NOISE.grid_steps(SeededSource(3)))
    z, m = SeededSource(3), NOISE.coefficients
    x = [wide.grid.steps(total).tolist() for total in sums]
    drawn = [z.integers(50).tolist() for _ in sums]
    y = [
        [sum(m[j] * x[t - j][i] for j in range(min(len(m), t + 1))) + drawn[t][i] for i in range(50)]
        for t in range(len(sums))
    ]
    decoded: list[list[int]] = []
    for t in range(len(sums)):
        taken = [sum(m[j] * decoded[t - j][i] for j in range(1, min(len(m), t + 1))) for i in range(50)]
        decoded.append([(y[t][i] - taken[i] + WHOLE // 2) // WHOLE for i in range(50)])
    for row, released in zip(decoded, got, strict=True):
        assert torch.equal(released.blocks["w"], wide.grid.values(torch.tensor(row)))


def test_noise_has_the_covariance_of_the_inverse() -> None:
    steps, coordinates = 8, 40_000
    got = releases([torch.zeros(coordinates, dtype=torch.float64)] * steps)
    noise = torch.stack([r.blocks["w"] for r in got]).numpy() / got[0].std
    # Columns of C⁻¹ after normalisation: the first row of the inverse series is 1/c₀.
    wanted = np.linalg.inv(dense(NOISE, steps))
    wanted = wanted @ wanted.T
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    assert np.abs(np.cov(noise, bias=True) - wanted).max() < 5 * scale.max() / math.sqrt(coordinates)
    for row, released in zip(noise, got, strict=True):
        assert released.noise_std / released.std == pytest.approx(row.std(), rel=0.02)


def test_law_0_the_precision_is_that_of_the_event() -> None:
    for released in releases([torch.zeros(10, dtype=torch.float64)] * 4):
        assert released.precision == pytest.approx(2.0**-2, rel=1e-12)


def test_one_band_is_gaussian_noise() -> None:
    rng = torch.Generator().manual_seed(0)
    total = torch.randn(50, generator=rng, dtype=torch.float64)
    (banded,) = releases([total], qg.BandedNoise(coefficients=(WHOLE,)))
    assert banded.gain == 1.0
    assert (banded.blocks["w"] - total).std() < 4.0


@pytest.mark.parametrize("change", ["clip", "space", "std"])
def test_a_block_begins_where_the_grid_changes(change: str) -> None:
    source, state = SeededSource(0), qg.NoiseState()
    gains = []
    for step in range(4):
        size = 6 if change == "space" and step >= 2 else 5
        total = ClippedSum(
            blocks={"w": torch.zeros(size, dtype=torch.float64)},
            sensitivity=2.0 if change == "clip" and step >= 2 else 1.0,
        )
        std = 3.0 if change == "std" and step >= 2 else 1.0
        draw = qg.NoiseDraw(std=std, divisor=1.0, source=source, reducer=default_reducer(), step=step)
        released, state = NOISE.release(total, draw, state)
        gains.append(released.gain)
    assert gains[0] == gains[2] < gains[1] == gains[3]


def test_memory_is_four_bytes_a_coordinate_and_band() -> None:
    source = MixingSource(SeededSource(0), NOISE.coefficients, block := NoiseBlock(1.0, 7, NOISE.bands - 1))
    for _ in range(5):
        source.fill(torch.empty(7, dtype=torch.int32))
        block = block.advance(source.mixed)
        source = MixingSource(SeededSource(1), NOISE.coefficients, block)
    assert [tuple(w.shape) for w in block.kept] == [(7,), (7,)]
    assert {w.dtype for w in block.kept} == {torch.int32}


# ---- coefficients -----------------------------------------------------------------------------------------


def brute_mean_square(c: Sequence[float], steps: int, momentum: float) -> float:
    matrix = sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(min(len(c), steps)))
    weights = np.tril(np.ones((steps, steps)))
    if momentum:
        powers = sum(np.diag(np.full(steps - j, momentum**j), -j) for j in range(steps))
        weights = weights @ powers
    return float(sum(v * v for v in c) * (np.linalg.norm(weights @ np.linalg.inv(matrix)) ** 2) / steps)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mean_square_noise_agrees_with_matrices(momentum: float) -> None:
    c = [1.0, 0.6, 0.3]
    assert mean_square(c, workload(20, momentum)) == pytest.approx(brute_mean_square(c, 20, momentum))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_optimised_coefficients_are_a_minimum(momentum: float) -> None:
    a, best = workload(60, momentum), optimise(4, 60, momentum)
    least = mean_square(best, a)
    assert least < mean_square(square_root(4), a) < mean_square([1.0], a)
    for index in range(1, 4):
        for step in (-0.01, 0.01):
            moved = best.copy()
            moved[index] += step
            assert mean_square(moved, a) > least
    whole = qg.BandedNoise.optimised(4, 60, momentum).coefficients
    assert mean_square(whole, a) < 1.005 * least


@pytest.mark.parametrize(("bands", "steps"), [(2, 1_000), (4, 4_000)])
def test_long_runs_have_better_coefficients_than_the_square_root(bands: int, steps: int) -> None:
    """The search steps out of the region in which C⁻¹ stays bounded, and must come back."""
    a = workload(steps)
    assert mean_square(optimise(bands, steps), a) < 0.92 * mean_square(square_root(bands), a)


def test_the_inverse_series() -> None:
    c = square_root(30)
    assert np.allclose(inverse(c, 30)[:4], [1.0, -0.5, -0.125, -0.0625])
    assert final_square([1.0], workload(10)) == 10


@pytest.mark.parametrize(("bands", "steps"), [(4, 1), (4, 2), (64, 20)])
def test_more_bands_than_steps_are_cut(bands: int, steps: int) -> None:
    """What a contribution shows after the last step is never released."""
    assert qg.BandedNoise.optimised(bands, steps, 0.9).bands <= steps


def test_the_loudest_useful_noise_fits_into_its_integers() -> None:
    """Momentum 0.99 over a thousand steps: slowly falling coefficients, whose noise is 32 times that of one step."""
    noise = qg.BandedNoise.optimised(4, 1_000, 0.99)
    loudest = 64 * np.linalg.norm(inverse(noise.coefficients, 4_096)) * SeededSource.std / 64
    assert 9 * loudest < 2**31
    with pytest.raises(ValueError, match="stays bounded"):
        qg.BandedNoise(
            coefficients=(64, 126, 62)
        )  # bounded, but 2,000 times as loud: 32 bits would not hold it


@pytest.mark.parametrize("wrong", [(), (63, 10), (64, 1.5), (64, 64, 64, 64, -64), (64, 200)])
def test_odd_coefficients_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        qg.BandedNoise(coefficients=wrong)


# ---- participation and price -------------------------------------------------------------------------------


def test_groups_are_a_fixed_partition() -> None:
    parts = [group_members(103, 4, group) for group in range(4)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    # The arithmetic must stay as it is: resumed runs of other versions rely on it.
    assert group_members(12, 3, 0).tolist() == [0, 1, 2, 8]


def test_no_record_is_drawn_twice_within_the_bands() -> None:
    sampler = qg.PoissonSampler(60, rate=0.2, steps=400, groups=4)
    last: dict[int, int] = {}
    draws = list(sampler)
    for step, draw in enumerate(draws):
        for record in draw:
            assert step - last.get(record, -4) >= 4
            last[record] = step
    mean = sum(map(len, draws)) / 400
    assert mean == pytest.approx(12, abs=6 * math.sqrt(12 / 400))


def test_users_are_in_groups_as_a_whole() -> None:
    unit = [user for user in range(20) for _ in range(3)]
    sampler = qg.PoissonSampler(60, rate=0.25, steps=40, unit=unit, most_records=3, groups=4)
    for step, draw in enumerate(sampler):
        assert {row // 3 for row in draw} <= set(group_members(20, 4, step % 4).tolist())


def test_the_plan_is_that_of_one_group_and_meets_the_closed_form() -> None:
    mechanism = replace(qg.methods.dp_sgd(), noise=NOISE).with_noise(2.0)
    batches = qg.PoissonBatches(records(), rate=1 / 4, steps=10, groups=4)
    (phase,) = plan(mechanism, batches)
    assert phase == Phase(event=BandedEvent(noise_multiplier=2.0, bands=3), rate=1.0, count=3)
    # Each group whole, three times: one Gaussian of multiplier 2/√3.
    once = [Phase(event=GaussianEvent(noise_multiplier=2.0 / math.sqrt(3)), rate=1.0, count=1)]
    assert epsilon([phase], 1e-5) == pytest.approx(epsilon(once, 1e-5), rel=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
def test_more_bands_than_groups_are_refused(groups: int) -> None:
    mechanism = replace(qg.methods.dp_sgd(), noise=NOISE)
    batches = qg.PoissonBatches(records(), rate=0.1, steps=10, groups=groups)
    with pytest.raises(qg.PrivacyError, match="groups=3"):
        qg.calibrate(mechanism, batches, epsilon=1.0, delta=1e-5)
    with pytest.raises(qg.PrivacyError, match="groups=3"):
        qg.Privatizer(small_net(), mechanism.with_noise(1.0), batches)
    with pytest.raises(qg.PrivacyError, match="groups=3"):
        Charge(event=NOISE.event(1.0, 0), rate=0.1)


def test_federated_rounds_refuse_it() -> None:
    mechanism = replace(qg.methods.dp_sgd(), noise=NOISE).with_noise(1.0)
    with pytest.raises(qg.PrivacyError, match="bands"):
        qg.federated.FederatedServer(small_net(), mechanism, clients=8, rate=0.5, rounds=3)


def test_a_rate_that_is_rounded_up_is_no_reason_to_refuse() -> None:
    """b·q = 1 but for rounding: every record of the group is drawn, and it is charged so."""
    sampler = qg.PoissonSampler(40, rate=0.25 + 1e-12, steps=4, groups=4)
    assert sampler.charge(NOISE.event(1.0, 0), 0).rate == 1.0
    assert sorted(row for draw in sampler for row in draw) == list(range(40))


@pytest.mark.parametrize(("rate", "groups"), [(0.5, 3), (0.1, 0), (0.1, 41), (0.01, 2.5)])
def test_groups_that_do_not_fit_are_refused(rate: float, groups: Any) -> None:
    with pytest.raises(ValueError, match="Expected groups"):
        qg.PoissonSampler(40, rate=rate, steps=4, groups=groups)


def test_representations_that_move_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="RandomMask"):
        replace(qg.methods.dp_sgd() @ qg.RandomMask(0.5), noise=NOISE)


def test_bands_are_chosen_where_they_pay() -> None:
    few = qg.choose_bands(rate=0.02, steps=65, epsilon=8.0, delta=1e-5)
    assert few.bands >= 4
    assert few.relative_noise < 0.7
    many = qg.choose_bands(rate=0.5, steps=200, epsilon=0.5, delta=1e-5)
    assert (many.bands, many.relative_noise) == (1, 1.0)


# ---- in a run ----------------------------------------------------------------------------------------------

DRAWS = [
    [int(i) for i in group_members(40, 3, step % 3)[step % 5 :: 2]] for step in range(7)
]  # each step from its own group
GROUPS = {"groups": 3}


def mechanism(noise_multiplier: float = 1.0) -> qg.Mechanism:
    return replace(qg.methods.dp_sgd(clip=1.0), noise=NOISE).with_noise(noise_multiplier)


def test_explain_says_what_correlation_does() -> None:
    with privatizer(mechanism(), DRAWS, users=GROUPS) as (private, _, _):
        said = private.explain().noise
    assert said.startswith("correlated over 3 steps; ×1.")
    share = float(said.split("and ×")[1].split(" ")[0])
    assert 0.5 < share < 1.0
    with privatizer(qg.methods.dp_sgd().with_noise(1.0), [[]]) as (private, _, _):
        assert private.explain().noise == ""


def test_a_run_ends_with_the_ledger_of_its_plan() -> None:
    with privatizer(mechanism(), DRAWS, users=GROUPS) as (private, batches, model):
        run(private, batches, model, micro=4)
        assert private.ledger.phases == private.plan
        assert [phase.count for phase in private.plan] == [3]
        assert private.steps_left == 0


def test_micro_batches_do_not_touch_a_release() -> None:
    histories = []
    for micro in (2, 64):
        with privatizer(mechanism(), DRAWS, users=GROUPS, model=small_net(torch.float64)) as world:
            histories.append(run(*world, micro=micro))
    for a, b in zip(*histories, strict=True):
        # Rounding each micro-batch to the grid moves a coordinate by a step, 10⁻⁶ of the noise.
        assert all(torch.allclose(a[name], b[name], rtol=0, atol=1e-5) for name in a)


def test_a_checkpoint_holds_nothing_of_the_noise_and_a_resumed_run_begins_a_block() -> None:
    with privatizer(mechanism(), DRAWS, users=GROUPS) as (private, batches, model):
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            private.release()
            if private.step == 4:
                break
        saved, ledger = private.state_dict(), private.ledger
        assert noise_state(private).secret.length == 4
    assert saved["noise"] == {}
    torch.save(saved, io.BytesIO())
    with privatizer(mechanism(), DRAWS, users=GROUPS, ledger=ledger) as (again, batches, model):
        again.load_state_dict(saved)
        run(again, batches, model)
        assert again._state.noise.get(0, Space({})).secret.length == len(DRAWS) - 4
        assert again.ledger.phases == again.plan
