"""Law 6: without noise and with large clips, an unbiased method returns the mean gradient."""

from __future__ import annotations

import pytest
import torch

from tests.cases.methods import METHODS, MethodCase, method_ids
from tests.cases.world import mean_gradient, privatizer, records, run, small_net

ROWS = [0, 4, 5, 11, 30]


@pytest.mark.parametrize("micro", [2, 64])
@pytest.mark.parametrize("case", [case for case in METHODS if case.unbiased], ids=method_ids)
def test_equals_the_mean_gradient(case: MethodCase, micro: int) -> None:
    with privatizer(case.build(1e6).with_noise(0.0), [ROWS]) as (private, batches, model):
        got = run(private, batches, model, micro=micro)[0]
    # The divisor is the constant qN = 10, never the five rows that were drawn.
    expected = mean_gradient(small_net(), records(), ROWS, divisor=10.0)
    assert got.keys() == expected.keys()
    for name in expected:
        assert torch.allclose(got[name], expected[name], rtol=1e-4, atol=1e-6), name
