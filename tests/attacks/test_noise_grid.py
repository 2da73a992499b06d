"""The grid: noise that is a multiple of some γ shows through whatever part of the sum is not.

The adversary learns γ, the coarsest power of two that divides every coordinate of a release of an empty batch, and asks
for which candidate sum p.grad·qN − sum lies on that grid.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import CHANCE, TRIALS, clipped_sum, coins, hits, releases


def one_matrix(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(8, 64, bias=False, dtype=dtype)


def summed(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x.to(next(model.parameters()).dtype)).sum(1)
    return out


def grid_of(release: Tensor) -> float:
    """The lowest bit that is set anywhere."""
    mantissa, exponent = np.frexp(release[release != 0].numpy())
    whole = (mantissa * 2.0**53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 53).min())


def off_grid(values: Tensor, grid: float) -> bool:
    return bool((torch.remainder(values, grid) != 0).any())


@pytest.mark.parametrize("source", ["default", "hardened"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_grid_of_the_noise_tells_no_sum(dtype: torch.dtype, source: str) -> None:
    """On 0.1: chance, as no grid is left by default and the hardened source rounds the sum to its own."""
    data = TensorDataset(torch.randn(4, 8, generator=torch.Generator().manual_seed(2)))
    sums = [clipped_sum(lambda: one_matrix(dtype), data, rows, summed) for rows in ([1, 2, 3], [0, 1, 2, 3])]
    truth, mechanism = coins(TRIALS), qg.methods.dp_sgd(clip=1.0).with_noise(4.0)
    draws = [[0, 1, 2, 3] if there else [1, 2, 3] for there in truth]
    *seen, empty = releases(one_matrix(dtype), mechanism, data, [*draws, []], summed, noise_source=source)
    grid = grid_of(empty)

    def suspicion(release: Tensor) -> float:
        return float(off_grid(release - sums[0], grid)) - float(off_grid(release - sums[1], grid))

    assert hits(seen, truth, suspicion) <= CHANCE
