"""Tables of which each sample reads one row, taken together: what each gives on its own, in norms and in sums."""

from __future__ import annotations

import pytest
import torch

from quietgrad._gradients.blocks import fuse
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.stages import BlockwiseGrads


def table(n: int, rows: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> IndexedGrad:
    g = torch.Generator().manual_seed(seed)
    ids, values = torch.randint(rows, (n,), generator=g), torch.randn(n, width, generator=g, dtype=dtype)
    return IndexedGrad(ids, torch.arange(n), values, samples=n, table=rows, single=True)


@pytest.mark.parametrize("n", [1, 2, 70])
def test_together_as_on_their_own(n: int) -> None:
    blocks = {
        "a": table(n, 5, 3, 0),
        "b": table(n, 1, 3, 1),
        "c": table(n, 40, 3, 2),
        "wide": table(n, 5, 4, 3),
    }
    assert list(fuse(blocks)) == [("a", "b", "c")]
    weights = torch.linspace(0, 1, n, dtype=torch.float64)
    grads = BlockwiseGrads(blocks, n)
    norms = torch.stack([block.squared_norms() for block in blocks.values()]).sum(0)
    torch.testing.assert_close(grads.squared_norms(), norms, rtol=1e-12, atol=0.0)
    sums = grads.weighted_sum(weights)
    assert list(sums) == list(blocks)
    for name, block in blocks.items():
        assert torch.equal(sums[name], block.weighted_sum(weights))


def test_a_row_of_weight_zero_adds_nothing_whatever_it_holds() -> None:
    blocks = {"a": table(3, 4, 2, 0), "b": table(3, 4, 2, 1)}
    blocks["b"].values[1] = float("nan")
    grads = BlockwiseGrads(blocks, 3)
    assert grads.squared_norms().isfinite().tolist() == [True, False, True]
    sums = grads.weighted_sum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert all(bool(total.isfinite().all()) for total in sums.values())


def test_several_rows_a_sample_and_other_precisions_stay_alone() -> None:
    ids, owner = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
    several = IndexedGrad(ids, owner, torch.randn(3, 2), samples=2, table=4)
    padded = IndexedGrad(ids[:1], owner[:1], torch.randn(1, 2), samples=2, table=4, single=True)
    assert fuse({"a": table(2, 4, 2, 0), "b": several, "c": padded}) == {}
    assert fuse({"a": table(2, 4, 2, 0), "b": table(2, 4, 2, 1, torch.float64)}) == {}
    assert fuse({}) == {}


def test_tables_of_one_width_are_fused() -> None:
    blocks = {f"{width} {seed}": table(2, 4, width, seed) for seed in range(2) for width in (2, 3)}
    assert list(fuse(blocks)) == [("2 0", "2 1"), ("3 0", "3 1")]
    grads = BlockwiseGrads(blocks, 2)
    norms = torch.stack([block.squared_norms() for block in blocks.values()]).sum(0)
    torch.testing.assert_close(grads.squared_norms(), norms, rtol=1e-12, atol=0.0)
