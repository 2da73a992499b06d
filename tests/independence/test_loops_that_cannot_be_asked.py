"""Loops whose records cannot be checked: refused, warned about, or reported as not covered."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import quietgrad as qg
from tests.independence import data
from tests.independence.patterns import entropy

MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
OWN = np.random.default_rng(3)


def noisy(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Augment by a generator that nobody can put back."""
    x, y = batch
    return entropy(model(x + torch.tensor(OWN.normal(size=tuple(x.shape)), dtype=torch.float32)), y)


def run(*, required: bool) -> qg.Privatizer:
    model = nn.Linear(data.FEATURES, data.CLASSES)
    batches = qg.PoissonBatches(data.rows(), rate=0.5, steps=2, collate_fn=data.stack)
    private = qg.Privatizer(model, MECHANISM, batches, require_independence=required)
    for batch in batches:
        for micro_batch in batch.split(32):
            private.backward(noisy(model, micro_batch))
        private.release()
    return private


def test_a_loop_that_cannot_be_checked_is_refused_or_not_covered() -> None:
    with pytest.raises(qg.PrivacyError, match="generator of its own"):
        run(required=True)
    with pytest.warns(UserWarning, match="independence not checked"):
        private = run(required=False)
    assert private.step == 2
    assert not private.covered
    assert "independence not checked" in str(private.explain())
    private.close()


def test_a_data_loader_is_warned_about_once() -> None:
    records, model = data.rows(), nn.Linear(data.FEATURES, data.CLASSES)
    sampler = qg.PoissonSampler(len(records), rate=0.5, steps=6)
    collate = qg.collate_possibly_empty(records, data.stack)
    loader: DataLoader[list[Tensor]] = DataLoader(
        records,  # type: ignore[arg-type]  # any map-style data set does
        batch_sampler=sampler,
        collate_fn=collate,
    )
    with qg.Privatizer(model, MECHANISM, sampler) as private, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in loader:
            private.backward(entropy(model(x), y))
            private.release()
        assert "not checked" in str(private.explain())
    assert sum("was not checked" in str(warning.message) for warning in caught) == 1


def test_a_data_loader_can_be_checked_by_hand() -> None:
    records, model = data.rows(), nn.Linear(data.FEATURES, data.CLASSES)
    sampler = qg.PoissonSampler(len(records), rate=0.5, steps=6)
    with qg.Privatizer(model, MECHANISM, sampler) as private:
        with pytest.raises(qg.PrivacyError, match="depends on other records"):
            private.check_independence(
                lambda batch: entropy(model(batch[0] - batch[0].mean(0)), batch[1]), records, data.stack
            )
        private.check_independence(lambda batch: entropy(model(batch[0]), batch[1]), records, data.stack)
        assert private.independence.is_checked
