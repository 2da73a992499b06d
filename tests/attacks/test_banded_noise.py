"""Correlated noise is taken back by later releases: whoever counts it like independent noise under-counts.

The adversary adds releases up, where the noise of a banded mechanism is smallest. A record that takes part in every
step is then found with far more certainty than its Gaussian event allows. So samplers that draw a record more often
than the bands allow are refused, and nothing that would help to subtract noise leaves the process.
"""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import quietgrad as qg
from quietgrad._collective import default_reducer
from quietgrad._gradients.stages import ClippedSum
from quietgrad._noise.sources import EntropySource
from quietgrad.accounting import Event, GaussianEvent
from tests.cases.world import losses_of, privatizer, records, small_net
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
        state = private._state.noise.get(0, private._state.space)
        assert state.secret is not None
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(qg.PrivacyError, match="secret"):
                attempt(state)
        assert "tensor" not in repr(state)


def test_what_a_checkpoint_holds_does_not_depend_on_records_given_the_releases() -> None:
    """Two runs with other records and the same seeds save equal checkpoints but for what was released."""
    saved = []
    for shift in (0.0, 1.0):
        data = records()
        data.tensors[0].add_(shift)
        with privatizer(mechanism(), DRAWS, users=GROUPS, data=data) as (private, batches, model):
            for batch in batches:
                for x, y in batch.split(64):
                    private.backward(losses_of(model, x, y))
                private.release()
            saved.append(private.state_dict())
    assert saved[0].keys() == saved[1].keys()
    for key in saved[0]:
        if not key.startswith("ledger"):  # the ledger holds the number of the run
            assert saved[0][key] == saved[1][key], key
