"""Times that `explain()` shows were those of the drawn batch, rounded up to a power of two: divided by the time of a
sample, which the same machine tells anyone, they said whether 64 or 65 records were drawn."""

from __future__ import annotations

import pytest
import torch

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
