"""Bases: orthonormal whatever the conditioning, spanning what numpy says, the same kept or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad._representations.base import Public
from quietgrad._representations.subspace import public_matrix
from quietgrad._representations.subspace.bases import (
    gram_eigenvectors,
    gram_matrices,
    power_iteration,
    random_basis,
    random_image,
)
from quietgrad._representations.subspace.basis import Basis
from quietgrad._representations.subspace.orthonormal import orthonormal_rows, orthonormality_bound
from quietgrad._representations.subspace.partition import partition
from quietgrad._representations.subspace.public_matrix import PublicMatrix
from tests.devices.axis import DEVICES
from tests.representations.public_stub import (
    SIZE,
    SPACE,
    blockwise,
    losses,
    numpy_top_directions,
    public_view,
    same_span,
)

ONE = partition(SPACE, 1)


def decaying_rows(
    count: int, *, dtype: torch.dtype = torch.float64, decay: float = 2.0, seed: int = 0
) -> torch.Tensor:
    """Gradients with clear principal directions: singular values from 1 down to 10^-decay."""
    rng = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(count, count, generator=rng, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(SIZE, count, generator=rng, dtype=torch.float64)).Q
    values = 10 ** -torch.linspace(0, decay, count, dtype=torch.float64)
    return (left * values @ right.T).to(dtype)


def power(public: Public, rank: int, iterations: int = 1) -> Basis:
    matrix, generator = PublicMatrix(public, losses), torch.Generator().manual_seed(4)
    like = next(iter(public.parameters.values()))
    return power_iteration(
        matrix, SPACE, ONE, {"part0": rank}, iterations=iterations, like=like, generator=generator
    )


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("decay", [0.0, 2.0, 4.0])
def test_rows_are_orthonormal_and_span_the_same_whatever_their_conditioning(
    decay: float, scale: float, device: str
) -> None:
    rng = torch.Generator().manual_seed(1)
    turn = torch.linalg.qr(torch.randn(30, 30, generator=rng, dtype=torch.float64)).Q
    directions = torch.linalg.qr(torch.randn(2000, 30, generator=rng, dtype=torch.float64)).Q.T
    rows = (turn * 10 ** -torch.linspace(0, decay, 30, dtype=torch.float64)) @ directions
    basis, bound = orthonormal_rows((rows * scale).float().to(device))
    basis = basis.cpu()
    error = float(torch.linalg.matrix_norm(basis.double() @ basis.double().T - torch.eye(30), 2))
    assert error <= float(bound) <= 1e-4
    assert error < 1e-5
    assert same_span(basis.double().numpy(), directions.numpy()) < 1e-2


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
def test_directions_that_are_only_rounding_are_dropped(device: str) -> None:
    rows = torch.randn(10, 500, generator=torch.Generator().manual_seed(0)).to(device)
    assert len(orthonormal_rows(torch.cat([rows, 3 * rows, rows[:4] - rows[4:8]]))[0]) == 10
    assert len(orthonormal_rows(torch.zeros(4, 9, device=device))[0]) == 0


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("kept", [True, False])
def test_a_full_rank_basis_spans_all_public_gradients(monkeypatch: Any, chunk: int, kept: bool) -> None:
    if not kept:
        monkeypatch.setattr(public_matrix, "KEPT_BYTES", 0)
    rows = decaying_rows(12)
    basis = power(public_view(rows, chunk=chunk), rank=12)
    expected = numpy_top_directions(rows.numpy(), 12)
    assert same_span(basis.groups["part0"].rows.numpy(), expected) < 1e-8


def test_one_power_iteration_is_numpys_from_the_same_start() -> None:
    rows = decaying_rows(15, decay=1.0)
    public = public_view(rows)
    basis = power(public, rank=6).groups["part0"].rows.numpy()
    seeds = torch.Generator().manual_seed(4)
    start = (
        torch.cat(
            [
                random_image(
                    blockwise(torch.eye(SIZE, dtype=torch.float64)).blocks[name],
                    6,
                    int(torch.randint(2**62, (), generator=seeds)),
                    rows,
                )[:, :, None]
                for name in SPACE
            ],
            2,
        )
        .sum(2)
        .numpy()
    )  # Ω, column by column what each parameter is sent to
    moved = (rows.numpy() @ start).T @ rows.numpy()
    expected = np.linalg.qr(moved.T)[0].T
    assert same_span(basis, expected) < 1e-8


def test_more_iterations_approach_the_principal_directions() -> None:
    rows = decaying_rows(15, decay=3.0)
    expected = numpy_top_directions(rows.numpy(), 5)
    once, often = (power(public_view(rows), 5, t).groups["part0"].rows.numpy() for t in (1, 12))
    assert same_span(often, expected) < 1e-4 < same_span(once, expected)


def test_the_random_start_is_white() -> None:
    """E ΩΩᵀ = I: every parameter enters one column with a random sign."""
    block = blockwise(torch.eye(SIZE)).blocks["a.weight"]
    start = random_image(block, 6, seed=1, like=torch.zeros(1))
    assert torch.equal(start[:20].abs().sum(1), torch.ones(20))
    assert set(start[:20].flatten().tolist()) == {-1.0, 0.0, 1.0}


def test_large_factored_blocks_meet_a_dense_start_without_being_formed(monkeypatch: Any) -> None:
    monkeypatch.setattr("quietgrad._representations.subspace.bases._FORMED", 0)
    rng = torch.Generator().manual_seed(0)
    block = FactoredGrad(torch.randn(9, 1, 4, generator=rng), torch.randn(9, 1, 5, generator=rng))
    monkeypatch.setattr(block, "dense", lambda: pytest.fail("it was formed"))
    many = torch.stack([random_image(block, 6, seed, torch.zeros(1)) for seed in range(400)])
    second_moment = torch.einsum("snk,smk->nm", many, many) / 400
    monkeypatch.undo()
    formed = block.dense().flatten(1).double()
    assert torch.allclose(second_moment, formed @ formed.T, atol=0.35 * float((formed @ formed.T).amax()))


@pytest.mark.parametrize("chunk", [4, 1000])
@pytest.mark.parametrize("kept", [True, False])
def test_eigenvectors_are_numpys(monkeypatch: Any, chunk: int, kept: bool) -> None:
    if not kept:
        monkeypatch.setattr(public_matrix, "KEPT_BYTES", 0)
    rows = decaying_rows(14)
    matrix = PublicMatrix(public_view(rows, chunk=chunk), losses)
    assert np.allclose(gram_matrices(matrix, ONE)["part0"].numpy(), rows.numpy() @ rows.numpy().T)
    basis = gram_eigenvectors(matrix, SPACE, ONE, {"part0": 5}, like=rows).groups["part0"].rows.numpy()
    expected = numpy_top_directions(rows.numpy(), 5)
    assert same_span(basis, expected) < 1e-8
    assert np.allclose(np.abs(np.sum(basis * expected, 1)), 1)  # strongest first


def test_groups_have_bases_of_their_own() -> None:
    rows = decaying_rows(14)
    groups = partition(SPACE, "modules")
    basis = gram_eigenvectors(
        PublicMatrix(public_view(rows), losses), SPACE, groups, {"a": 4, "b": 3}, like=rows
    )
    first, second = rows.numpy()[:, :25], rows.numpy()[:, 25:]
    assert same_span(basis.groups["a"].rows.numpy(), numpy_top_directions(first, 4)) < 1e-8
    assert same_span(basis.groups["b"].rows.numpy(), numpy_top_directions(second, 3)) < 1e-8


def test_a_random_basis_knows_nothing() -> None:
    space = {"w": torch.Size((3000,))}
    basis = random_basis(
        space,
        partition(space, 1),
        {"part0": 60},
        like=torch.zeros(1),
        generator=torch.Generator().manual_seed(0),
    )
    vector = {"w": torch.randn(3000, generator=torch.Generator().manual_seed(1))}
    inside = basis.expand(basis.coordinates(vector))["w"]
    error = float((vector["w"] - inside).norm() / vector["w"].norm())
    assert basis.error < 1e-4
    assert error == pytest.approx((1 - 60 / 3000) ** 0.5, abs=0.02)  # GEP's figure 7: above 95%


def test_a_rank_deficient_public_matrix_lowers_the_rank_and_says_so() -> None:
    rows = decaying_rows(4)
    twice = torch.cat([rows, rows])
    with pytest.warns(RuntimeWarning, match="rank 4 only"):
        basis = power(public_view(twice), rank=6)
    assert len(basis.groups["part0"].rows) == 4
    with pytest.warns(RuntimeWarning, match="rank 0 only"):
        assert len(power(public_view(torch.zeros(8, SIZE)), rank=6).groups["part0"].rows) == 0


def test_public_rows_that_are_not_finite_are_left_out() -> None:
    rows = decaying_rows(12)
    broken = torch.cat([rows, torch.full((2, SIZE), torch.nan, dtype=torch.float64)])
    basis = gram_eigenvectors(PublicMatrix(public_view(broken), losses), SPACE, ONE, {"part0": 5}, like=rows)
    assert same_span(basis.groups["part0"].rows.numpy(), numpy_top_directions(rows.numpy(), 5)) < 1e-8


def test_rank_above_the_number_of_public_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="rank <= 8, the number of public gradients, got 9"):
        power(public_view(decaying_rows(8)), rank=9)
    with pytest.raises(ValueError, match="rank <= 8"):
        gram_eigenvectors(
            PublicMatrix(public_view(decaying_rows(8)), losses), SPACE, ONE, {"part0": 9}, like=torch.zeros(1)
        )


def test_public_losses_that_change_within_a_step_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(public_matrix, "KEPT_BYTES", 0)
    calls = iter(range(10))

    def gradients(_: Any) -> Iterator[PerSampleGrads]:
        return iter([blockwise(decaying_rows(12, seed=next(calls)) * 2)])

    public = replace(public_view(decaying_rows(12)), collect=lambda f, _: _scaled(gradients(f), next(calls)))
    with pytest.raises(ValueError, match="other gradients when asked again"):
        power(public, rank=5)


def _scaled(chunks: Iterator[PerSampleGrads], factor: int) -> Iterator[PerSampleGrads]:
    for chunk in chunks:
        rows = torch.cat([block.flatten(1) for block in chunk.dense().values()], 1)
        scaled: BlockwiseGrads = blockwise(rows * (1 + factor))
        yield scaled


def test_no_public_losses_at_all_are_refused() -> None:
    public = replace(public_view(decaying_rows(3)), collect=lambda _, __: iter(()))
    with pytest.raises(ValueError, match="gave no losses"):
        power(public, rank=2)


@pytest.mark.parametrize("stretch", [0.0, 1e-6, 1e-4, 1e-2])
def test_the_bound_of_orthonormality_is_above_the_truth_for_any_direction(stretch: float) -> None:
    """One direction of a thousand that is off, along a basis vector or across all of them."""
    for direction in (torch.eye(1000, dtype=torch.float64)[7], torch.full((1000,), 1000**-0.5).double()):
        rows = torch.eye(1000, 1300, dtype=torch.float64)
        rows += stretch * direction[:, None] * (direction @ rows)
        assert (1 + stretch) ** 2 - 1 <= orthonormality_bound(rows) <= 1e3 * stretch
