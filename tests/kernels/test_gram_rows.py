"""Gram norms in C are those of the reference at every level and stride, and never below the truth."""

from __future__ import annotations

import pytest
import torch

from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.gram import factor_norms, gram_sums
from quietgrad._kernels import levels
from tests.cases.gradients import KINDS
from tests.laws.test_law2_floating_point import distances, scales

pytestmark = pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
LEVELS = levels.levels()
SIZES = [(1, 8, 8), (2, 16, 8), (3, 1, 24), (4, 8, 7), (6, 25, 16), (13, 40, 3), (64, 32, 96), (5, 1030, 513)]
"""Positions, inputs, outputs: in whole vectors and not, in one float32 sum and in several."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("n", [1, 5])
def test_norms_and_lengths_are_those_of_the_reference(size: tuple[int, int, int], n: int, level: str) -> None:
    g = torch.Generator().manual_seed(n)
    t, i, o = size
    a, b = torch.randn(n, t, i, generator=g), torch.randn(n, t, o, generator=g)
    with levels.use_level("off"):
        expected = factor_norms(a, b)
    with levels.use_level(level):
        assert gram_sums.find_kernel(a, b, 0.0) is not None
        found = factor_norms(a, b)
    torch.testing.assert_close(found.squared, expected.squared, rtol=2e-3, atol=0.0)
    torch.testing.assert_close(found.lengths, expected.lengths, rtol=1e-5, atol=0.0)
    truth = torch.einsum("nto,nti->noi", b.double(), a.double()).square().sum((1, 2))
    assert bool((found.squared >= truth).all())
    assert bool((found.squared <= truth * 1.02)[~found.careful].all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["transposed", "features first", "expanded", "sliced"])
def test_norms_do_not_depend_on_where_numbers_lie(kind: str, level: str) -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(4, 7, 16, generator=g), torch.randn(4, 7, 8, generator=g)
    layouts = {
        "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "features first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "expanded": lambda x: x[:1].expand(x.shape),
        "sliced": lambda x: torch.cat([x, x], 2)[..., : x.shape[2]],
    }
    a, b = (layouts[kind](x) for x in (a, b))
    with levels.use_level(level):
        found, same = factor_norms(a, b), factor_norms(a.contiguous(), b.contiguous())
    assert torch.equal(found.squared, same.squared)
    assert torch.equal(found.lengths, same.lengths)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_a_number_stays_alone_and_is_dropped(value: float, level: str) -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 5, 8, generator=g), torch.randn(3, 5, 8, generator=g)
    b[1, 4, 0] = value
    with levels.use_level(level):
        block = FactoredGrad(a, b, algorithm="ghost")
        squared = block.squared_norms()
        total = block.weighted_sum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert squared.isfinite().tolist() == [True, False, True]
    assert bool(total.isfinite().all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(5))
def test_positions_that_cancel_are_careful_rows_or_not_below_the_truth(seed: int, level: str) -> None:
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(6, 1, 16, generator=g).expand(6, 8, 16) * (1 + 1e-6 * torch.randn(6, 8, 1, generator=g))
    b = torch.randn(6, 8, 8, generator=g)
    b = b - b.mean(1, keepdim=True)
    with levels.use_level(level):
        found = factor_norms(a, b)
        norms = FactoredGrad(a, b, algorithm="ghost").squared_norms()
    truth = torch.einsum("nto,nti->noi", b.double(), a.double()).square().sum((1, 2))
    assert bool((found.squared >= truth).all())
    assert bool((norms >= torch.bmm(b.transpose(1, 2), a).double().square().sum((1, 2))).all())


@pytest.mark.parametrize("level", LEVELS)
def test_one_sample_moves_the_clipped_sum_by_at_most_the_bound(level: str) -> None:
    case = next(case for case in KINDS if case.name == "tokens_ghost_vectors")
    with levels.use_level(level):
        for seed in range(5):
            tensors = case.draw(9, torch.Generator().manual_seed(seed))
            tensors["b"] = (tensors["b"].double() * scales(torch.float32, seed).view(-1, 1, 1)).float()
            distances(case, tensors, [1.0, 1e-9, 1e4][seed % 3], range(9), f"{level} seed {seed}")


@pytest.mark.parametrize("level", ["off", *LEVELS])
@pytest.mark.parametrize("length", [16, 509, 512, 1031, 4096])
@pytest.mark.parametrize("lanes", [8, 16])
def test_roundings_that_all_go_down_are_made_up_for(lanes: int, length: int, level: str) -> None:
    """Each lane begins with 1, and what follows is too short to be added to it."""
    a = torch.full((1, 4, length), 0.99 * 2.0**-12.5)
    a[..., :lanes] = 1.0
    b = torch.eye(4, 8)[None]
    with levels.use_level(level):
        found = factor_norms(a, b)
    truth = torch.einsum("nto,nti->noi", b.double(), a.double()).square().sum((1, 2))
    assert not bool(found.careful.any())
    assert bool((found.squared >= truth).all())


@pytest.mark.parametrize("level", ["off", *LEVELS])
def test_words_that_are_unlike_each_other_need_no_forming(level: str) -> None:
    """A vocabulary's inner products are long: counted as one float32 sum they would make every record careful."""
    a, b = torch.eye(64)[None].repeat(2, 1, 4), torch.eye(64, 50_257)[None].repeat(2, 1, 1)
    with levels.use_level(level):
        found = factor_norms(a, b)
    assert not bool(found.careful.any())
    assert bool((found.squared >= 4 * 64).all())


def test_empty_double_and_unbuilt_take_the_torch_path() -> None:
    with levels.use_level(LEVELS[-1]):
        assert gram_sums.find_kernel(torch.randn(2, 3, 7), torch.randn(2, 3, 8), 0.0) is not None
        assert gram_sums.find_kernel(torch.randn(0, 3, 8), torch.randn(0, 3, 8), 0.0) is None
        wide = torch.randn(2, 3, 8, dtype=torch.float64)
        assert gram_sums.find_kernel(wide, wide, 0.0) is None
    with levels.use_level("off"):
        assert gram_sums.find_kernel(torch.randn(2, 3, 8), torch.randn(2, 3, 8), 0.0) is None
