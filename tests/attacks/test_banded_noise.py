"""Correlated noise is taken back by later releases: whoever counts it like independent noise under-counts.

The adversary adds releases up, where the noise of a banded mechanism is smallest. A record that takes part in every
step is then found with far more certainty than its Gaussian event allows. So samplers that draw a record more often
than the bands allow are refused, and nothing that would help to subtract noise leaves the process.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._collective import default_reducer
from quietgrad._gradients.stages import ClippedSum
from quietgrad._noise.sources import EntropySource, NoiseSource, SeededSource
from quietgrad.accounting import Event, GaussianEvent
from tests.cases.inside import noise_state
from tests.cases.world import grad_of, losses_of, privatizer, records, small_net
from tests.noise.test_banded import DRAWS, GROUPS, NOISE, mechanism

STEPS = 12


@dataclass(frozen=True, kw_only=True)
class Forgetful(qg.BandedNoise):
    """Planted bug: the bands are not in the event, so that any sampler will do."""

    def event(self, noise_multiplier: float, step: int) -> Event:
        return GaussianEvent(noise_multiplier=noise_multiplier)


def matrix(noise: qg.BandedNoise) -> np.ndarray:
    c = np.array(noise.coefficients) / noise.norm
    return np.sum([np.diag(np.full(STEPS - j, c[j]), -j) for j in range(len(c))], axis=0)


def scores(noise: qg.BandedNoise, takes_part: list[int], coordinates: int = 4_000) -> tuple[float, float]:
    """The best linear test for a record that adds 1 to each coordinate of these steps; each coordinate is a run.

    Returns:
        the distance that is measured, and the one that the event of its parts allows, in standard deviations.
    """
    sigma = 2.0
    source, state, rows = EntropySource(), qg.NoiseState(), []
    for step in range(STEPS):
        # Sensitivity 1 a coordinate: each coordinate stands for a run of its own, and p of the grid's price is apart.
        total = torch.full((coordinates,), float(step in takes_part), dtype=torch.float64)
        draw = qg.NoiseDraw(std=sigma, divisor=1.0, source=source, reducer=default_reducer(), step=step)
        released, state = noise.release(ClippedSum(blocks={"w": total}, sensitivity=1.0), draw, state)
        rows.append(released.blocks["w"].numpy())
    c = matrix(noise)
    direction = c.T @ c @ np.isin(np.arange(STEPS), takes_part)  # whitened: Σ⁻¹ times the mean
    seen = direction @ np.stack(rows)
    return float(seen.mean() / seen.std()), math.sqrt(len(takes_part)) / sigma


def test_parts_that_are_bands_apart_are_as_hidden_as_the_event_says() -> None:
    measured, allowed = scores(NOISE, [0, 3, 6, 9])
    assert measured == pytest.approx(allowed, rel=0.1)


def test_a_record_of_every_step_would_be_found() -> None:
    """The attack works on the planted bug: this is what the refusal prevents."""
    measured, allowed = scores(NOISE, list(range(STEPS)))
    assert measured > 1.4 * allowed
    batches = qg.PoissonBatches(records(), rate=0.25, steps=STEPS)
    broken = replace(qg.methods.dp_sgd(), noise=Forgetful(coefficients=NOISE.coefficients)).with_noise(1.0)
    qg.Privatizer(small_net(), broken, batches).close()  # nothing in the event to refuse
    with pytest.raises(qg.PrivacyError, match="bands"):
        qg.Privatizer(small_net(), mechanism(), batches)


def test_secret_noise_cannot_leave_the_process() -> None:
    with privatizer(mechanism(), DRAWS, users=GROUPS) as (private, batches, model):
        for x, y in next(iter(batches)).split(64):
            private.backward(losses_of(model, x, y))
        private.release()
        state = noise_state(private)
        assert state.secret is not None
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(qg.PrivacyError, match="secret"):
                attempt(state)
        assert "tensor" not in repr(state)


class Forged(NoiseSource):
    """Noise that makes a run on other records release exactly what another run has released.

    Args:
        wanted: Y_t of the other run.
        private: gives the sums of this run, once it is made.
    """

    private, std = False, SeededSource.std

    def __init__(self, wanted: list[Tensor]) -> None:
        self.wanted, self.sums, self.world = wanted, list[Tensor](), list[qg.Privatizer]()

    def fill(self, out: Tensor) -> None:
        self.sums.insert(0, sum_in_steps(self.world[0]))
        added = sum(m * x for m, x in zip(NOISE.coefficients, self.sums, strict=False))
        out.copy_(self.wanted.pop(0) - added)

    def bits(self, count: int) -> Tensor:
        raise NotImplementedError


def sum_in_steps(private: qg.Privatizer) -> Tensor:
    """X_t: the sum of the step in progress, in steps of its grid."""
    (total,) = private.begin_step().sums
    assert total.grid is not None
    return torch.cat([total.grid.steps(block).flatten() for block in total.blocks.values()])


def checkpoint_of(
    data: TensorDataset, source: NoiseSource
) -> tuple[dict[str, Any], list[Tensor], list[Tensor]]:
    """Weights and state after a run, the sums X of its steps, and its secret noise."""
    sums = []
    with privatizer(mechanism(), DRAWS, users=GROUPS, data=data, source=source) as (private, batches, model):
        if isinstance(source, Forged):
            source.world.append(private)
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(losses_of(model, x, y))
            sums.append(sum_in_steps(private))
            private.release()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.05 * grad_of(p))
        secret = list(noise_state(private).secret.kept)
        return {"model": model.state_dict(), "private": private.state_dict()}, sums, secret


def saved_bytes(checkpoint: dict[str, Any]) -> bytes:
    # The chain of the ledger begins with the random number of its run.
    kept = {key: value for key, value in checkpoint["private"].items() if key != "ledger_head"}
    buffer = io.BytesIO()
    torch.save({"model": checkpoint["model"], "private": kept}, buffer)
    return buffer.getvalue()


def test_what_a_checkpoint_holds_does_not_depend_on_records_given_the_releases() -> None:
    """Two runs on other records whose releases are equal bit by bit save equal checkpoints, bit by bit.

    The noise of the second run is chosen so that its accounted Y are those of the first. Its secret then differs: a
    checkpoint that held any of it would differ too.
    """
    first, sums, secret = checkpoint_of(records(), SeededSource(5))
    drawn = SeededSource(5)
    y = [
        sum(m * sums[t - j] for j, m in enumerate(NOISE.coefficients) if j <= t)
        + drawn.integers(len(sums[0])).to(torch.int64)
        for t in range(len(sums))
    ]
    other = records()
    other.tensors[0].mul_(-3.0)
    second, other_sums, other_secret = checkpoint_of(other, Forged([torch.as_tensor(one) for one in y]))
    assert all(not torch.equal(a, b) for a, b in zip(sums, other_sums, strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(secret, other_secret, strict=True))
    assert saved_bytes(first) == saved_bytes(second)


def test_a_secret_in_the_public_state_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the kept noise goes into the public part, and so into checkpoints."""
    release = qg.BandedNoise.release

    def leaky(self: Any, total: Any, draw: Any, state: Any) -> Any:
        released, state = release(self, total, draw, state)
        return released, qg.NoiseState(public={"kept": list(state.secret.kept)}, secret=state.secret)

    clean, *_ = checkpoint_of(records(), SeededSource(5))
    monkeypatch.setattr(qg.BandedNoise, "release", leaky)
    leaking, *_ = checkpoint_of(records(), SeededSource(5))
    assert saved_bytes(clean) != saved_bytes(leaking)
