"""A sampler that draws in its own way under the price of a plain Poisson draw: ε would be far too small.

The adversary's sampler draws its victim in every step. The ledger counted draws of rate q. On 0.2 nothing was said.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.audit.traces import TracedNoise
from quietgrad.methods.gip.noise import SelectedGaussian

VICTIM = 7


class Always(qg.PoissonSampler):
    """Draws record 7 in every step, beside the others."""

    def draw(self) -> list[int]:
        return sorted({*super().draw(), VICTIM})


class Paying(Always):
    """Says that a step costs what a step on all records costs."""

    def charge(self, event: qg.accounting.Event, step: int) -> qg.accounting.Charge:
        return qg.accounting.Charge(event=event, rate=1.0)


class Cheating(Paying):
    """Draws in yet another way below a class that has a price."""

    def draw(self) -> list[int]:
        return [VICTIM, VICTIM]


class Repeating(qg.PoissonSampler):
    def __iter__(self) -> Any:
        return iter([[VICTIM]] * self.steps)


@pytest.mark.parametrize("kind", [Always, Cheating, Repeating])
def test_draws_without_a_price_are_refused(kind: type[qg.PoissonSampler]) -> None:
    with pytest.raises(qg.PrivacyError, match="and not charge"):
        kind(100, rate=0.01, steps=10)


def test_draws_with_a_price_and_plain_ones_are_accepted() -> None:
    assert Paying(100, rate=0.01, steps=10).draw().count(VICTIM) == 1
    data = TensorDataset(torch.zeros(100, 2))
    qg.PoissonBatches(data, rate=0.01, steps=10)
    assert not Always(100, rate=0.01, steps=10, seed=0).private


def test_a_traced_noise_allows_no_more_releases_than_the_noise() -> None:
    """A selection is accounted for once; its trace let several releases pass."""
    assert TracedNoise(qg.Gaussian(), lambda _: None).one_release is False
    noise = SelectedGaussian.__new__(SelectedGaussian)
    assert TracedNoise(noise, lambda _: None).one_release is True
