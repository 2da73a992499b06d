"""What counts as rounding between two passes, and what as another record's influence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._independence.fingerprints import Fingerprints


def taken(losses: list[float], norms: list[float] | None = None) -> Fingerprints:
    wide = torch.tensor(losses, dtype=torch.float64)
    lengths = torch.ones_like(wide) if norms is None else torch.tensor(norms, dtype=torch.float64)
    return Fingerprints(wide, lengths, 0.5 * lengths)


def first(count: int) -> Tensor:
    return torch.arange(count)


@pytest.mark.parametrize(
    ("loss", "again"),
    [
        (1.202863335609436, 1.2027795314788818),
        (0.17788353562355042, 0.17789031565189362),
        (0.013659459538757801, 0.013659929856657982),
        (3e-8, 0.0),
    ],
)
@pytest.mark.parametrize("stayed", [1, 2])
def test_rounding_of_a_loss_is_not_mixing(loss: float, again: float, stayed: int) -> None:
    """Seen of wide residual networks: convolutions of one image round otherwise than those of several.

    Alone in its half, a loss was compared with no other one, so that rounding refused the run by chance.
    """
    batch, half = taken([loss] * 4), taken([again] * stayed)
    assert not batch.moved(half, first(stayed), first(stayed)).any()


def test_a_gradient_near_zero_is_rounding() -> None:
    batch, half = taken([1.0] * 3, [1.0, 1e-7, 2.0]), taken([1.0], [3e-7])
    assert not batch.moved(half, torch.tensor([1]), first(1)).any()


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_another_gradient_is_seen_whatever_is_added_to_the_loss(offset: float) -> None:
    batch, half = taken([1.0 + offset, 2.0 + offset], [1.0, 1.0]), taken([1.0 + offset], [1.01])
    assert batch.moved(half, first(1), first(1)).all()


def test_a_number_that_is_no_longer_finite_has_moved() -> None:
    batch = taken([1.0, float("nan")])
    assert batch.moved(taken([float("nan"), float("nan")]), first(2), first(2)).tolist() == [True, False]
