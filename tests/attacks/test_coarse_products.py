"""One line elsewhere in a script, `torch.set_float32_matmul_precision("medium")`, lets torch multiply float32 matrices
as bfloat16 ones where the processor can: norms and sums then have 8 bits, and no bound of a clip holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._program.statistics import SecondMoments


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def by_the_old_name() -> None:
    torch.set_float32_matmul_precision("medium")


def by_the_new_name() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


@pytest.mark.parametrize("shorten", [by_the_old_name, by_the_new_name])
@pytest.mark.parametrize("clip", [1.0, qg.PerGroupClip({"": 1.0})], ids=["flat", "groups"])
def test_shortened_products_are_refused(shorten: object, clip: float | qg.Clip) -> None:
    model = nn.Linear(3, 2)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 3)), rate=1.0, steps=2)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=clip).with_noise(1.0), batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                assert callable(shorten)
                shorten()
                with pytest.raises(ValueError, match="set_float32_matmul_precision"):
                    private.backward(model(x).square().sum(1))
            break
    assert model.weight.grad is None


def test_statistics_are_refused_too() -> None:
    torch.set_float32_matmul_precision("high")
    with pytest.raises(ValueError, match="set_float32_matmul_precision"):
        qg.FlatClip(1.0)(SecondMoments().rows(torch.randn(5, 3)), 0)
