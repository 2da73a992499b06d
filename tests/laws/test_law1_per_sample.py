"""Law 1: squared norms, weighted sums and dense gradients equal the loop over samples, for every layer and way."""

from __future__ import annotations

import pytest
import torch

from quietgrad.capture.recorder import Recorder
from quietgrad.stages import BlockwiseGrads
from tests.cases.layers import LAYERS, LayerCase
from tests.reference import looped


def captured(
    case: LayerCase, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], calls: int
) -> BlockwiseGrads:
    recorder = Recorder(model)
    recorder.attach()
    try:
        for _ in range(calls):
            grads = recorder.collect(case.losses(model, inputs))
    finally:
        recorder.detach()
    return grads


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop(case: LayerCase, n: int) -> None:
    model, inputs = case.model(), case.batch(n)
    expected = looped(model, inputs, case.losses, n)
    grads = captured(case, model, inputs, calls=2)
    weights = torch.linspace(0.0, 1.0, n, dtype=torch.float64)
    total = grads.weighted_sum(weights)
    squared = torch.zeros(n, dtype=torch.float64)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.dense()[name], rows)
        torch.testing.assert_close(total[name], torch.tensordot(weights, rows, 1))
        squared += rows.flatten(1).square().sum(1)
    torch.testing.assert_close(grads.squared_norms(), squared)
