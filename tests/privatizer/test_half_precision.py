"""Models in half precision and under autocast: clipped, summed and noised in float32; `p.grad` is a rounded copy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import privatizer, run, small_net

HALF = [torch.bfloat16, torch.float16]
BOUND = 1e-3


def clipped_sum(model: nn.Module, x: Tensor, autocast: torch.dtype | None) -> Tensor:
    data = TensorDataset(x, torch.zeros(len(x), dtype=torch.long))
    batches = qg.PoissonBatches.replay(data, [list(range(len(x)))], rate=1.0)
    mechanism = qg.methods.dp_sgd(clip=BOUND).with_noise(0.0)
    with qg.Privatizer(model, mechanism, batches, deterministic=True) as private:
        ((inputs, labels),) = next(iter(batches)).split(len(x))
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            losses = F.cross_entropy(model(inputs).float(), labels, reduction="none")
        private.backward(losses)
        (total,) = private.begin_step().sums
        private.release()
    return torch.cat([block.double().flatten() for block in total.blocks.values()])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("autocast", [False, True])
def test_one_of_a_thousand_aligned_rows_moves_the_sum_by_no_more_than_the_bound(
    dtype: torch.dtype, autocast: bool
) -> None:
    """Summed in half precision it would be three times as much: rows vanish in the sum, then come back together."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 10), nn.LayerNorm(10)).to(torch.float32 if autocast else dtype)
    x = torch.randn(1, 64).repeat(1024, 1).to(next(model.parameters()).dtype)
    whole = clipped_sum(model, x, dtype if autocast else None)
    without = clipped_sum(model, x[1:], dtype if autocast else None)
    assert 0.9 * BOUND < float((whole - without).norm()) <= BOUND


@pytest.mark.parametrize("case", BY_FAMILY)
@pytest.mark.parametrize("dtype", HALF)
def test_every_method_trains_a_model_in_half_precision(case: MethodCase, dtype: torch.dtype) -> None:
    draws = [list(range(12)), [3, 4], []]
    with privatizer(case.build(0.5).with_noise(1.0), draws, model=small_net(dtype)) as parts:
        history = run(*parts, micro=5, lr=0.1)
    for gradients in history:
        for name, gradient in gradients.items():
            assert gradient.dtype == dtype, name
            assert bool(gradient.isfinite().all()), name
    assert any(float(gradient.abs().max()) > 0 for gradient in history[2].values()), (
        "an empty batch has noise"
    )
