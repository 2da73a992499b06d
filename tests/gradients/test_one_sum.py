"""Gradients that are summed once are let go of block by block, and are never summed twice."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients import factored
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads


def grads() -> BlockwiseGrads:
    g = torch.Generator().manual_seed(0)
    made = {
        str(k): FactoredGrad(torch.randn(6, 3, 5, generator=g), torch.randn(6, 3, 4, generator=g))
        for k in range(4)
    }
    return BlockwiseGrads(made, 6)


def test_the_sum_is_the_same_and_the_last_thing_that_is_there() -> None:
    weights = torch.rand(6, dtype=torch.float64)
    expected = grads().weighted_sum(weights)
    once = grads().drop_factors()
    torch.testing.assert_close(once.squared_norms(), grads().squared_norms())
    found = once.weighted_sum(weights)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for again in (lambda: once.weighted_sum(weights), lambda: once.blocks, lambda: once.dense()):
        with pytest.raises(AssertionError, match="summed already"):
            again()


@pytest.mark.parametrize("releases", [1, 2])
def test_a_step_with_one_release_holds_only_factors_that_are_still_to_be_summed(
    monkeypatch: pytest.MonkeyPatch, releases: int
) -> None:
    alive: list[weakref.ref[Tensor]] = []
    memory_cost, weighted_sum = list[int](), FactoredGrad.weighted_sum

    def counted(self: FactoredGrad, weights: Any) -> Tensor:
        if not any(one() is self.b for one in alive):
            alive.append(weakref.ref(self.b))
        memory_cost.append(sum(one() is not None for one in alive))
        return weighted_sum(self, weights)

    monkeypatch.setattr(factored, "SMALL_PRODUCT", 0)  # small layers are summed together, and freed together
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(9, 9) for _ in range(4)))
    batches = qg.PoissonBatches(
        TensorDataset(torch.randn(8, 9), torch.randint(0, 9, (8,))), rate=1.0, steps=9
    )
    method = qg.methods.dp_sgd(clip=1.0)
    method = method if releases == 1 else qg.both(method, method, shares=(0.5, 0.5))
    with qg.Privatizer(net, method.with_noise(1.0), batches) as private:
        drawn = iter(batches)
        for step in range(5):
            if step == 4:  # no records are replaced any more, which would hold on to them
                monkeypatch.setattr(FactoredGrad, "weighted_sum", counted)
            ((x, y),) = next(drawn).split(8)
            private.backward(F.cross_entropy(net(x), y, reduction="none"))
            private.release()
    assert len(memory_cost) == 4 * releases
    assert max(memory_cost) == (1 if releases == 1 else 4)
