"""Mixed dtypes: one block of float32 before the others, and float64 parameters get noise of 24 bits.

The adversary reads p.grad of a float64 layer and asks whether (p.grad·qN − sum)/std is a number of float32, up to the
last bits of float64: for the true sum it always is, for another one never.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.attacks.harness import CHANCE, hits
from tests.attacks.targets import Target, play


def short(noise: Tensor) -> float:
    """The part of the draws that float32 holds exactly."""
    return float(((noise.float().double() - noise).abs() <= 1e-13 * noise.abs()).double().mean())


@pytest.mark.parametrize("source", ["default", "hardened"])
def test_float64_parameters_get_noise_of_float64(source: str) -> None:
    """On 0.1, σ = 20: 200 of 200 by default; chance for the hardened source."""
    game = play("dp_sgd", "mixed", source, 20.0)
    wide = torch.cat(
        [torch.full((p.numel(),), p.dtype == torch.float64) for p in Target("mixed").parameters()]
    )

    def suspicion(seen: Tensor) -> float:
        absent, present = (short((seen - sums)[wide] / game.std) for sums in (game.absent, game.present))
        return present - absent if abs(present - absent) > 0.1 else 0.0

    assert hits(game.seen, game.truth, suspicion) <= CHANCE
