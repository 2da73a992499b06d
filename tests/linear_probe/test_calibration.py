"""Probabilities of a private head: the clip's bias undone, the head's noise averaged over, no order changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quietgrad._linear_probe.calibration import class_probabilities, unclipped

CLIP = 0.25


def balanced(truth: torch.Tensor, clip: float) -> torch.Tensor:
    """The softmax at which clipped errors of records with these true shares add up to zero, by small steps."""
    logits, one_hot = torch.zeros_like(truth), torch.eye(len(truth), dtype=truth.dtype)
    for _ in range(4000):
        errors = logits.softmax(0) - one_hot
        errors = errors * (clip / errors.norm(dim=1, keepdim=True)).clamp_max(1.0)
        logits = logits - 0.5 * truth @ errors
    return logits.softmax(0)


@pytest.mark.parametrize("truth", [(0.7, 0.3), (0.6, 0.3, 0.1), (0.4, 0.3, 0.2, 0.1)])
def test_true_shares_come_back_from_a_head_that_balances_clipped_errors(truth: tuple[float, ...]) -> None:
    wanted = torch.tensor(truth, dtype=torch.float64)
    said = balanced(wanted, CLIP)
    assert float((said - wanted).abs().max()) > 0.02
    torch.testing.assert_close(unclipped(said[None], CLIP)[0], wanted, rtol=1e-3, atol=1e-4)


def test_two_classes_by_hand() -> None:
    """q = min(c, p)/(min(c, p) + min(c, 1 − p)) with c = C/√2."""
    p, c = np.linspace(0.01, 0.99, 99), CLIP / 2**0.5
    found = unclipped(torch.from_numpy(np.stack([1 - p, p], 1)), CLIP)[:, 1]
    wanted = np.minimum(c, p) / (np.minimum(c, p) + np.minimum(c, 1 - p))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-9)


def test_without_a_clip_nothing_is_undone() -> None:
    shares = torch.rand(20, 4, dtype=torch.float64).softmax(1)
    torch.testing.assert_close(unclipped(shares, float("inf")), shares)


def test_noise_is_averaged_over() -> None:
    logits = torch.tensor([[0.0, 2.5]], dtype=torch.float64)
    rng = np.random.default_rng(0)
    drawn = torch.from_numpy(rng.normal(size=(200_000, 2))) + logits
    wanted = unclipped(drawn.softmax(1), CLIP).mean(0)
    torch.testing.assert_close(class_probabilities(logits, CLIP, 1.0)[0], wanted, rtol=0, atol=5e-3)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("clip", [0.25, 1.0, float("inf")])
def test_the_order_of_the_classes_stays(classes: int, clip: float) -> None:
    rng = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(2000, classes, generator=rng, dtype=torch.float64)
    found = class_probabilities(logits, clip, 0.8)
    assert torch.equal(found.argsort(1), logits.argsort(1))
    torch.testing.assert_close(found.sum(1), torch.ones(2000, dtype=torch.float64))


def test_half_stays_half() -> None:
    middle = class_probabilities(torch.zeros(1, 2, dtype=torch.float64), CLIP, 1.0)
    assert float(middle[0, 1]) == pytest.approx(0.5)
