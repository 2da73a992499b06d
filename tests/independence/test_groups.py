"""What the first micro-batches are asked about: all of it by exchange, and a small group in every way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._independence.questions import GROUP
from tests.independence.data import CLASSES, FEATURES
from tests.independence.patterns import entropy

ROWS = 64
MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def asked_rows(change: Callable[[Tensor], Tensor], factor: Callable[[Tensor], float], steps: int = 3) -> int:
    """Train on micro-batches of 64 rows; return how many rows only asked."""
    torch.manual_seed(0)
    model, asked = torch.nn.Linear(FEATURES, CLASSES), 0
    data = TensorDataset(torch.randn(ROWS, FEATURES), torch.arange(ROWS) % CLASSES)
    batches = qg.PoissonBatches(data, rate=1.0, steps=steps)
    with qg.Privatizer(model, MECHANISM, batches) as private:
        for batch in batches:
            for x, y in batch.split(ROWS):
                asked += len(x) if private.independence.is_asking else 0
                private.backward(entropy(model(change(x)), y) * factor(x))
            private.release()
    return asked


def centred_when_many(x: Tensor) -> Tensor:
    return x - x.mean(0) if len(x) > 2 * GROUP else x


def test_mixing_among_many_records_only_is_refused() -> None:
    with pytest.raises(qg.PrivacyError, match="depends on other records"):
        asked_rows(centred_when_many, lambda _: 1.0)


def test_a_division_by_the_number_of_rows_is_refused() -> None:
    """Exchanges keep that number: only a group without its other half shows it."""
    with pytest.raises(qg.PrivacyError, match="depends on other records"):
        asked_rows(lambda x: x, lambda x: 1 / len(x))


def test_the_first_micro_batches_cost_few_passes() -> None:
    """Two exchanges of the first micro-batch, one of each other, and 56 + 40 + 40 rows of groups; 17 passes before."""
    assert asked_rows(lambda x: x, lambda _: 1.0) <= 4 * ROWS + 17 * GROUP
