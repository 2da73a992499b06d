"""Copies of a sampler or a run: whoever copies one copies its generator, and both go on with the same randomness."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import read

COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
}
REFUSED = (ValueError, TypeError, pickle.PicklingError)


@pytest.mark.parametrize("copying", COPIES)
def test_a_copied_sampler_draws_anew_or_is_refused(copying: str) -> None:
    """On 0.1: the same draws."""
    sampler = qg.PoissonSampler(1000, rate=0.5, steps=3)
    try:
        twin = COPIES[copying](sampler)
    except REFUSED:
        return
    assert next(iter(sampler)) != next(iter(twin))


@pytest.mark.parametrize("copying", COPIES)
def test_copied_batches_draw_anew_or_are_refused(copying: str) -> None:
    """On 0.1: the same draws."""
    batches = qg.PoissonBatches(TensorDataset(torch.arange(1000.0)[:, None]), rate=0.5, steps=3)
    try:
        twin = COPIES[copying](batches)
    except REFUSED:
        return
    (mine,), (theirs,) = (next(next(iter(drawn)).split(1000)) for drawn in (batches, twin))
    assert mine.shape != theirs.shape or not torch.equal(mine, theirs)


def test_a_seeded_sampler_may_be_copied() -> None:
    """Reproducible draws are what a seed is for; such a run says that it is not private."""
    sampler = qg.PoissonSampler(1000, rate=0.5, steps=3, seed=1)
    assert next(iter(copy.deepcopy(sampler))) == next(iter(sampler))
    assert not sampler.private


@pytest.mark.parametrize("source", ["default", "hardened"])
def test_a_copied_run_has_noise_of_its_own_or_is_refused(source: str) -> None:
    """On 0.1: right; the default source cannot be copied, and the hardened one has no state."""
    model, mechanism = nn.Linear(8, 8), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    batches = qg.PoissonBatches.replay(TensorDataset(torch.randn(8, 8)), [[], []], rate=0.5)
    with qg.Privatizer(model, mechanism, batches, noise_source=source) as private:
        next(iter(batches))
        try:
            twin, its_model = copy.deepcopy((private, model))
            twin.release()
        except REFUSED:
            return
        private.release()
        assert not set(read(its_model).tolist()) & set(read(model).tolist())
