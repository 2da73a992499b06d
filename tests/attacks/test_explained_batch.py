"""Times that `explain()` shows were those of the drawn batch, rounded up to a power of two: divided by the time of a
sample, which the same machine tells anyone, they said whether 64 or 65 records were drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.tuning import LayerReport, Tuner, for_rows


def explained(drawn: int) -> tuple[LayerReport, ...]:
    block = FactoredGrad(torch.randn(drawn, 4, 6), torch.randn(drawn, 4, 5))
    _, report = Tuner(None, deterministic=False).select_algorithm("layer", block)
    return for_rows([report], rows=60.0)


def test_an_explanation_does_not_tell_how_many_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Tuner,
        "_measure",
        lambda _, __, algorithms: {algorithm: 0.5 + len(algorithm) for algorithm in algorithms},
    )
    assert len({explained(drawn) for drawn in (1, 2, 63, 64, 65, 128, 129)}) == 1


def asked(draws: list[range]) -> str:
    """What is said of independence after these draws."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    batches = qg.PoissonBatches.replay(TensorDataset(torch.randn(8, 4)), draws, rate=0.5)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(model(x).square().sum(1))
            private.release()
        return private.explain().independence


def test_an_explanation_does_not_tell_which_draws_held_one_record() -> None:
    """It said "in 2 micro-batches" after a draw of one record, about which nothing can be asked."""
    assert (
        asked([range(8)] * 3)
        == asked([range(1), range(8), range(8)])
        == asked([range(3), range(0), range(8)])
    )
