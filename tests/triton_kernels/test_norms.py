"""Norms and sums by Triton kernels keep their bounds, for the rows of law 2, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._capture.adapters.norm import norm_gradients
from quietgrad._gradients.gram import factor_norms
from quietgrad._gradients.row_arithmetic import EXCESS, weighted_products
from quietgrad._kernels import registry, triton_norms
from quietgrad._kernels.registry import Implementation
from quietgrad._kernels.rounding import LOST, POSITIONS, THETA, UNIT, slack
from quietgrad._kernels.triton_backend import KERNELS
from tests.cases.gradients import KINDS, KindCase
from tests.laws.test_law2_floating_point import ROWS, distances, scales
from tests.triton_kernels.interpreter import DEVICE, needs_triton

pytestmark = needs_triton


@pytest.fixture(autouse=True)
def _kernels_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations on the CPU's tensors take the kernels, which then run in the interpreter."""
    for run, supports in KERNELS:
        kernel = Implementation(run.__name__, "cpu", "Triton", run, supports)
        if run.__name__ != "keyed_trials":
            monkeypatch.setitem(registry._IMPLEMENTATIONS, (run.__name__, "cpu"), [kernel])


def rows_at_every_scale(n: int, p: int) -> Tensor:
    g = torch.Generator().manual_seed(p)
    return torch.randn(n, p, generator=g) * torch.logspace(-30, 15, n)[:, None]


@pytest.mark.parametrize("p", [1, 7, 1500, 20_000])
def test_squared_norms_are_not_below_the_truth(p: int) -> None:
    rows = rows_at_every_scale(6, p).to(DEVICE)
    found, truth = triton_norms.row_squared_norms(rows), rows.double().square().sum(1)
    assert bool((found >= truth).all())
    assert bool((found <= truth * (1 + EXCESS)).all())


def test_a_row_that_is_not_a_number_stays_alone() -> None:
    rows = rows_at_every_scale(4, 50).to(DEVICE)
    rows[2, 3] = torch.nan
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0], dtype=torch.float64, device=DEVICE)
    assert triton_norms.row_squared_norms(rows).isfinite().tolist() == [True, True, False, True]
    kept = [0, 1, 3]
    expected = weights[kept] @ rows[kept].double()
    torch.testing.assert_close(triton_norms.weighted_rows(weights, rows), expected, rtol=1e-12, atol=0.0)


SIZES = [
    (3, 40, 24),
    (1, 8, 3),
    *(pytest.param(s, marks=pytest.mark.slow) for s in [(70, 5, 6), (33, 33, 33), (5, 300, 70)]),
]
"""Positions, inputs, outputs: some by Gram matrices, some by tiles of the product."""


def factors(size: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Factors at three scales, and the true squared norms."""
    t, i, o = size
    g = torch.Generator().manual_seed(t)
    a, b = (torch.randn(3, t, d, generator=g).to(dtype) for d in (i, o))
    a[1] *= 1e-12
    b[2] *= 1e9
    return a, b, torch.einsum("nto,nti->noi", b.double(), a.double()).square().sum((1, 2))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_norms_of_factors_are_not_below_the_truth(size: tuple[int, int, int]) -> None:
    a, b, truth = factors(size, torch.float32)
    found = factor_norms(a, b)
    assert bool((found.squared >= truth).all())
    assert bool((found.squared <= truth * 1.02).all())
    assert not found.careful.any()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_norms_of_factors_in_bfloat16_are_within_the_bound_of_tensor_cores(
    size: tuple[int, int, int],
) -> None:
    """The interpreter adds as IEEE wants; `tests/laws/test_tensor_cores.py` simulates cores that do not."""
    a, b, truth = factors(size, torch.bfloat16)
    sums = triton_norms.gram_sums(a, b, LOST)
    bound = slack(torch.float32, sums.roundings) * sums.roots[:, 0].square()
    assert bool(((sums.squared - truth).abs() <= bound).all())
    assert sums.roundings >= THETA * 2


@pytest.mark.slow
def test_norms_of_positions_that_cancel_are_not_below_the_truth() -> None:
    g = torch.Generator().manual_seed(0)
    for t, i, o in ((8, 16, 12), (40, 6, 5)):
        a = torch.randn(3, 1, i, generator=g).expand(3, t, i) * (1 + 1e-6 * torch.randn(3, t, 1, generator=g))
        b = torch.randn(3, t, o, generator=g)
        b = b - b.mean(1, keepdim=True)
        truth = torch.einsum("nto,nti->noi", b.double(), a.double()).square().sum((1, 2))
        assert bool((factor_norms(a, b).squared >= truth).all())


@pytest.mark.parametrize("size", [(5, 1, 70, 9), (4, 30, 8, 66), (2, 300, 5, 4)], ids=str)
def test_clipped_sums_are_rounded_within_their_runs(size: tuple[int, int, int, int]) -> None:
    n, t, i, o = size
    g = torch.Generator().manual_seed(t)
    a, b = torch.randn(n, t, i, generator=g), torch.randn(n, t, o, generator=g)
    weights = torch.rand(n, generator=g, dtype=torch.float64)
    weights[1] = 0.0
    a[1, 0, 0] = torch.nan
    found = weighted_products(b, a, weights)
    a[1] = 0.0
    rows, columns = b.double() * weights[:, None, None], a.double()
    truth = torch.einsum("nto,nti->oi", rows, columns)
    most = torch.einsum("nto,nti->oi", rows.abs(), columns.abs())
    # Two roundings of the weight and its product, then those of a run.
    assert bool(((found - truth).abs() <= (POSITIONS + 3) * UNIT * most).all())


def test_gradients_of_a_layer_norm_are_those_of_the_reference() -> None:
    g = torch.Generator().manual_seed(0)
    for t, d in ((1, 5), (19, 70)):
        x, b = torch.randn(3, t, d, generator=g), torch.randn(3, t, d, generator=g)
        mean, scale = x.mean(2), 1 / x.std(2)
        expected = norm_gradients.reference(x.double(), b.double(), mean.double(), scale.double())
        for mine, theirs in zip(norm_gradients(x, b, mean, scale), expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


FEW = ("dense", "outer")
"""Kinds that the short tests take; the slow ones take all."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.name in FEW else pytest.mark.slow) for case in KINDS],
    ids=str,
)
def test_law_2_holds_with_these_kernels(case: KindCase) -> None:
    for seed, bound in ((0, 1.0), (1, 1e-3)):
        tensors = case.draw(ROWS, torch.Generator().manual_seed(seed))
        scale = scales(torch.float32, seed).view(-1, *[1] * (tensors[case.scaled].dim() - 1))
        tensors[case.scaled] = (tensors[case.scaled].double() * scale).float()
        distances(case, tensors, bound, range(0, ROWS, 4), f"{case} in Triton, seed {seed}")
