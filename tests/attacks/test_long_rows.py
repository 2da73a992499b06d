"""Long gradients: a float32 norm of ten million coordinates falls below the true one, and the clip with it.

The adversary has one record and reads what it alone releases without noise: the norm of p.grad·qN must not exceed C.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import clipped_sum


class Long(nn.Module):
    """A bias, or a row of an embedding, whose gradient is `direction`."""

    def __init__(self, layer: str, direction: Tensor) -> None:
        super().__init__()
        self.layer: nn.Module = _bias(len(direction)) if layer == "bias" else nn.Embedding(2, len(direction))
        self.direction = direction

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = torch.linalg.vecdot(self.layer(x), self.direction)
        return loss


def _bias(size: int) -> nn.Module:
    linear = nn.Linear(1, size)
    linear.weight.requires_grad_(False)
    return linear


def flat(size: int) -> Tensor:
    return torch.full((size,), 10.0)


def headed(size: int) -> Tensor:
    """Some large coordinates first, beside which the small ones vanish one by one."""
    values = torch.full((size,), 2e-3)
    values[:64] = 10.0
    return values


DIRECTIONS = {"flat": flat, "headed": headed}
RECORD = {"bias": torch.ones(1, 1), "embedding": torch.zeros(1, dtype=torch.long)}


def released_norm(layer: str, shape: str, size: int) -> float:
    direction = DIRECTIONS[shape](size)
    return float(clipped_sum(lambda: Long(layer, direction), TensorDataset(RECORD[layer]), [0]).norm())


@pytest.mark.parametrize(("layer", "shape"), [("bias", "flat"), ("bias", "headed"), ("embedding", "flat")])
def test_ten_million_coordinates_stay_within_the_clip(layer: str, shape: str) -> None:
    """On 0.1: 1.0093 C for equal coordinates, 1.0030 C for a large head."""
    assert released_norm(layer, shape, 10_000_000) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["bias", "embedding"])
def test_forty_million_coordinates_stay_within_the_clip(layer: str) -> None:
    """On 0.1: 1.0177 C."""
    assert released_norm(layer, "flat", 40_000_000) <= 1.0
