"""Denormal clip weights: C/‖g‖ near 1e-45 is rounded to a whole multiple of the smallest float, up to twice as large.

The adversary sends one record with a gradient near 3e38 and reads what it alone releases without noise.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import clipped_sum

SMALLEST = 2.0**-149
LEAST_CLIP = 1e-12
"""Below it float32 could not be held to a clip; such a clip is refused."""


def weight() -> nn.Module:
    return nn.Linear(1, 1, bias=False)


def products(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x).sum(1)
    return out


def ratio(norm: float, clip: float) -> float:
    record = TensorDataset(torch.full((1, 1), norm))
    return float(clipped_sum(weight, record, [0], products, clip=clip).norm()) / clip


@pytest.mark.parametrize("norm", [3e38, 1e38, 1e36, 1e30, 1.0, 1e-30, 1e-38, 1e-45])
def test_a_record_of_any_norm_stays_within_the_clip(norm: float) -> None:
    """On 0.1: 1.96 C for norms of 1e30 and more; the clips are `part` smallest floats times the norm."""
    clips = [max(part * SMALLEST * norm, LEAST_CLIP) for part in (0.51, 0.76, 1.3, 1.51, 2.6, 100.5, 1e7)]
    assert max(ratio(norm, clip) for clip in clips) <= 1.0


@pytest.mark.parametrize("clip", [1e-37, 1e-13, 1e31])
def test_a_clip_that_float32_cannot_be_held_to_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="Scale the losses"):
        ratio(1.0, clip)
