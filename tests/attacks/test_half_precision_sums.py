"""Half precision in the sum: one record moves it by more than C, because the others round it.

The adversary compares what a batch releases with and without one record. Without noise he sees the ratio itself; the
parts of the batch point in opposite directions, so that the last rounding (of a finished release, to the parameter's
dtype) cannot be what moves it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence

HALF = 512


def linear(dtype: torch.dtype) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(64, 1, bias=False, dtype=dtype)

    return build


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x.to(next(model.parameters()).dtype)).sum(1)
    return out


def opposed(seed: int) -> TensorDataset:
    """512 records along one direction, 512 against it."""
    x = torch.rand(1, 64, generator=torch.Generator().manual_seed(seed)) + 0.5
    return TensorDataset(torch.cat([x.expand(HALF, -1), -x.expand(HALF, -1)]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_micro_batches_add_up_without_rounding(dtype: torch.dtype) -> None:
    """On 0.1: 1.97 C in bfloat16, 1.05 C in float16."""
    worst = max(
        influence(linear(dtype), opposed(seed), list(range(2 * HALF)), losses, removed=[0], micro=HALF).ratio
        for seed in range(8)
    )
    assert worst <= 1 + torch.finfo(dtype).eps  # a finished release is rounded once, to the parameter's dtype


class Cast(nn.Module):
    """A float32 model run under autocast, as most are."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.dtype, self.first, self.second = dtype, nn.Linear(64, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            out: Tensor = self.second(torch.tanh(self.first(x)))
        return out.float().sum(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_sums_are_not_rounded(dtype: torch.dtype) -> None:
    """On 0.1, 1024 equal records: 2.42 C under bfloat16, 1.014 C under float16."""
    rows = list(range(1024))
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).expand(1024, -1)
    data = TensorDataset(x.contiguous())
    outcome = influence(lambda: Cast(dtype), data, rows, removed=[0, 5])
    assert outcome.holds(1e-3)
