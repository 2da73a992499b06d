"""Runs that are added in one pass come to the same bits as those that are added one after the other."""

from __future__ import annotations

import pytest
import torch

from quietgrad.gradients import sums
from quietgrad.gradients.sums import runs, sum_of_products
from quietgrad.kernels import library

pytestmark = pytest.mark.skipif(not library.levels(), reason="the C library was not built")


@pytest.mark.parametrize("level", library.levels())
@pytest.mark.parametrize(
    ("positions", "outputs", "inputs"), [(257, 3, 5), (1000, 70, 130), (2048, 1, 1), (512, 0, 4)]
)
@pytest.mark.parametrize("together", [1, 2, 7])
def test_every_level_adds_the_runs_of_the_reference(
    level: str, positions: int, outputs: int, inputs: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "TOGETHER", together * max(1, outputs * inputs))
    g = torch.Generator().manual_seed(positions)
    # Of very different sizes, so that another order of adding would come to other bits.
    b = torch.randn(positions, outputs, generator=g) * torch.logspace(-6, 6, positions)[:, None]
    a = torch.randn(positions, inputs, generator=g)
    a[-1] = float("inf")
    found = {}
    for each in (level, "off"):
        with library.at(each):
            found[each] = sum_of_products(b, a, runs(positions, 1, a.dtype))
    assert found[level].dtype == found["off"].dtype == torch.float64
    assert torch.equal(found[level].nan_to_num(7.0), found["off"].nan_to_num(7.0))


def test_a_sum_does_not_lie_in_memory_that_the_next_one_takes() -> None:
    a, b = torch.randn(600, 20), torch.randn(600, 30)
    first = sum_of_products(b, a, runs(600, 1, a.dtype))
    kept = first.clone()
    sum_of_products(2 * b, a, runs(600, 1, a.dtype))
    assert torch.equal(first, kept)
