"""A record whose gradient is not a number: one NaN in `p.grad` would tell that it was there, whatever the noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import clipped_sum, releases
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import SIDE, losses_of, small_net

RECORDS, BAD = 8, 3


class Net(nn.Module):
    """A convolution, a norm, two linear layers and an embedding of the class."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.inner, self.out, self.words = nn.Linear(4 * 16, 8), nn.Linear(8, 3), nn.Embedding(5, 8)

    def forward(self, x: Tensor, word: Tensor) -> Tensor:
        hidden = self.norm(self.conv(x)).relu().flatten(1)
        out: Tensor = self.out(self.inner(hidden).tanh() + self.words(word)).square().sum(1)
        return out


def records(value: float) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 1, 6, 6, generator=rng)
    x[BAD] = value
    return TensorDataset(x, torch.randint(0, 5, (RECORDS,), generator=rng))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("micro", [RECORDS, 3])
def test_a_record_that_is_not_a_number_adds_nothing(value: float, micro: int) -> None:
    """Its row is dropped: the sum is that of the others, to the bit."""
    everybody, others = list(range(RECORDS)), [i for i in range(RECORDS) if i != BAD]
    whole = clipped_sum(Net, records(value), everybody, micro=micro)
    assert whole.isfinite().all()
    without = clipped_sum(Net, records(value), others, micro=micro)
    assert float((whole - without).norm()) <= 1.0


@pytest.mark.parametrize("case", BY_FAMILY)
def test_no_release_of_any_method_holds_what_is_not_a_number(case: MethodCase) -> None:
    """Every record is bad: what is released is noise."""
    data = TensorDataset(
        torch.full((RECORDS, 1, SIDE, SIDE), math.nan), torch.zeros(RECORDS, dtype=torch.long)
    )
    mechanism = case.build(1.0).with_noise(1.0)
    for released in releases(small_net(), mechanism, data, [list(range(RECORDS))] * 2, losses_of):
        assert released.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_anomaly_detection_is_refused_whatever_the_records_are(value: float) -> None:
    """It stops the backward at NaN: whether a run ended would tell of one record."""
    everybody = list(range(RECORDS))
    with torch.autograd.set_detect_anomaly(True), pytest.raises(qg.PrivacyError, match="check_nan=False"):
        clipped_sum(Net, records(value), everybody)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert clipped_sum(Net, records(value), everybody).isfinite().all()
