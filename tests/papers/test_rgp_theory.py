"""RGP's proposition 3.1: the noise of a plan is of the order q√(T log(1/δ))/ε."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg

pytestmark = pytest.mark.slow


def test_proposition_31_the_noise_grows_like_the_moments_accountant_says() -> None:
    constants = []
    for rate, steps in ((0.01, 1_000), (0.01, 16_000), (0.04, 1_000)):
        batches = qg.PoissonBatches(TensorDataset(torch.zeros(1)), rate=rate, steps=steps)
        for epsilon in (0.5, 1.0):
            sigma = qg.calibrate(
                qg.methods.rgp(rank=1), batches, epsilon=epsilon, delta=1e-5
            ).noise_multiplier
            assert sigma is not None
            constants.append(sigma * epsilon / (rate * math.sqrt(steps * math.log(1e5))))
    assert max(constants) < 2.5 * min(constants)
