"""Coordinates that are made even by public energies before the clip."""

from __future__ import annotations

import pytest
import torch
from benchmarks.fine_tuning.preconditioner import LEAST, preconditioner


def test_preconditioning_keeps_the_median_length_and_gives_the_least_noise_at_a_quarter() -> None:
    phi = torch.randn(101, 300) * torch.logspace(0, -1.5, 300)
    noise = {}
    for power in (0.0, 0.125, 0.25, 0.375, 0.5):
        scale = preconditioner(phi, power)
        torch.testing.assert_close((phi * scale).norm(dim=1).median(), phi.norm(dim=1).median())
        shape = scale * phi.square().mean(0) ** power
        torch.testing.assert_close(shape, shape[0].expand(300))
        # A clip at the rows' root mean square length: Σ_j a_j² e_j there, and what each coordinate then has.
        noise[power] = float((phi * scale).square().sum(1).mean() * scale.pow(-2).sum())
    assert torch.equal(preconditioner(phi, 0.0), torch.ones(300))
    assert min(noise, key=lambda power: noise[power]) == 0.25
    assert noise[0.25] < 0.7 * noise[0.0]


def test_preconditioning_does_not_blow_up_what_never_moves() -> None:
    scale = preconditioner(torch.tensor([[1.0, 1.0, 1.0, 0.0]]), 0.25)
    assert float(scale[3] / scale[0]) == pytest.approx((0.75 * LEAST) ** -0.25)
