"""Law 2 on a device: one sample moves a computed sum by at most C, though the device is asked nothing on the way.

On the CPU, rows that are extreme or cancel are found and added on their own. On a device they are scaled by powers of
two, added in float64, or given a larger norm.
"""

from __future__ import annotations

import pytest
import torch

from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.row_arithmetic import ACCURACY, PIECE, inner_products
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._representations.subspace.basis import Basis, GroupBasis
from quietgrad._representations.subspace.orthonormal import orthonormal_groups
from quietgrad._representations.subspace.residual import LARGEST
from tests.attacks.test_projected_lengths import SCALES, moved_by, spiked
from tests.cases.gradients import KINDS, KindCase, Tensors
from tests.devices.axis import DEVICES
from tests.laws.test_law2_floating_point import ROWS, scales, total, without


def worst_ratio(case: KindCase, tensors: Tensors, bound: float, device: str) -> float:
    tensors = {name: x.to(device) for name, x in tensors.items()}
    whole = total(case.grads(tensors), bound).cpu()
    assert bool(whole.isfinite().all())
    moved = [
        (whole - total(case.grads(without(tensors, row)), bound).cpu()).norm()
        for row in range(len(tensors[case.scaled]))
    ]
    return float(torch.stack(moved).max()) / bound


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_a_sample_moves_the_sum_by_its_bound_at_every_scale(
    case: KindCase, dtype: torch.dtype, device: str
) -> None:
    for seed in range(2):
        tensors = case.draw(ROWS, torch.Generator().manual_seed(seed))
        scale = scales(dtype, seed).view(-1, *[1] * (tensors[case.scaled].dim() - 1))
        tensors[case.scaled] = tensors[case.scaled].double() * scale
        tensors = {name: x if name == "ids" else x.to(dtype) for name, x in tensors.items()}
        for bound in (1e-6, 1.0, 1e6):
            assert worst_ratio(case, tensors, bound, device) <= 1.0


FACTORS = [case for case in KINDS if case.name.startswith("tokens")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", FACTORS, ids=str)
def test_positions_that_cancel_move_the_sum_by_its_bound(case: KindCase, device: str) -> None:
    for left in (1e-1, 1e-3, 1e-5, 1e-7):
        tensors = case.draw(ROWS, torch.Generator().manual_seed(3))
        # All positions but one cancel, and what is left of the row is much shorter than they are.
        a, b = tensors["a"].float(), tensors["b"].float()
        half = a.shape[1] // 2
        a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half], -b[:, :half]
        b[:, 2 * half :] *= left
        assert worst_ratio(case, {**tensors, "a": a, "b": b}, 1.0, device) <= 1.0


@pytest.mark.parametrize("device", DEVICES)
def test_a_table_that_cancels_what_is_tied_to_it_moves_the_sum_by_its_bound(device: str) -> None:
    (case,) = (case for case in KINDS if case.name == "tied")
    for left in (2.0, 1.0, 1e-1, 1e-3, 1e-5, 1e-7, 0.0):  # 2: both parts are alike, and add up
        tensors = {name: x.clone() for name, x in case.draw(ROWS, torch.Generator().manual_seed(4)).items()}
        matrix = torch.einsum("nso,nsi->noi", tensors["o"].double(), tensors["a"].double())
        tensors["ids"][:] = torch.tensor([0, 1, 2, 3, 4, 4])
        tensors["b"] = -(1 - left) * matrix[:, [0, 1, 2, 3, 4, 4]]
        tensors["b"][:, -1] = 0.0  # the last row of the table is read twice
        tensors = {name: (x if name == "ids" else x.float()).to(device) for name, x in tensors.items()}
        for bound in (1e-6, 1e-3, 1.0, 1e3):
            assert worst_ratio(case, tensors, bound, device) <= 1.0
        grads = case.grads(tensors)
        rows = grads.dense()["w"].double()
        true = rows.flatten(1).square().sum(1)
        found = grads.squared_norms()
        assert bool((found >= true * (1 - 1e-6)).all())
        if left >= 1.0:  # where the parts cancel, the norm may be above the truth
            assert bool((found <= true * 1.5).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_a_row_that_is_not_finite_adds_nothing(case: KindCase, device: str) -> None:
    tensors = {name: x.to(device) for name, x in case.draw(5, torch.Generator().manual_seed(1)).items()}
    broken = {name: x.clone() for name, x in tensors.items()}
    broken[case.scaled][2] = torch.nan
    without_row = total(case.grads(without(tensors, 2)), 1.0)
    torch.testing.assert_close(total(case.grads(broken), 1.0), without_row, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, PIECE, 3 * PIECE + 5, 430_121])
def test_inner_products_of_level_rows_are_within_their_accuracy(size: int, device: str) -> None:
    """Equal numbers drift the most when they are added up in float32."""
    for scale in SCALES[::6]:
        x, y = torch.full((3, size), scale), torch.full((2, size), size**-0.5)
        found = inner_products(x.to(device), y.to(device)).cpu()
        truth, longest = x.double() @ y.double().T, x.double().norm(dim=1)[:, None] * y.double().norm(dim=1)
        assert bool(((found - truth).abs() <= ACCURACY * longest).all())


@pytest.mark.parametrize("device", DEVICES)
def test_a_level_gradient_moves_the_residual_by_its_clip_at_most(device: str) -> None:
    size = 280_066
    space = Space.of_shapes({"v": torch.Size((size,))})
    rows = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    rows[0] = 1.0
    ((basis, error),) = orthonormal_groups({"all": rows.to(device)}).values()
    groups = Basis({"all": GroupBasis(basis, error, space)})
    for scale in SCALES[::6]:
        row = scale * spiked(size)
        clip = float(row.double().norm()) / LARGEST
        grads = BlockwiseGrads({"v": DenseGrad(row[None].to(device))}, 1)
        assert moved_by(grads, groups, space, clip) <= clip
