"""The papers' figures from a watched run: right numbers, and only in research mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad.lab.diagnostics.subspace import (
    EigenvalueSpectrum,
    Figure,
    ProjectionError,
    StableRanks,
    stable_rank,
)
from tests.cases.world import privatizer, run, small_net
from tests.methods.test_gep import ROWS, labelled, numpy_gradients, private_rows


def watched(
    mechanism: Mechanism, figure: Figure, steps: int = 2, micro: int = 2, dtype: torch.dtype = torch.float64
) -> None:
    model: nn.Module = small_net(dtype)
    with privatizer(mechanism.with_noise(1.0), [ROWS] * steps, model=model, research=True) as (
        private,
        batches,
        model,
    ):
        private.watch(figure)
        run(private, batches, model, micro=micro)


def numpy_basis(rank: int) -> np.ndarray:
    model: nn.Module = small_net(torch.float64)
    basis: np.ndarray = np.linalg.svd(numpy_gradients(model, labelled(model)), full_matrices=False)[2][:rank]
    return basis


@pytest.mark.parametrize("build", [qg.methods.gep, qg.methods.biased_gep, qg.methods.pdp_sgd])
def test_the_projection_error_is_numpys(build: Any) -> None:
    mechanism = build(labelled, rank=24)
    error = ProjectionError(mechanism)
    watched(mechanism, error)
    total, basis = private_rows(small_net(torch.float64)).sum(0), numpy_basis(24)
    expected = np.linalg.norm(total - total @ basis.T @ basis) / np.linalg.norm(total)
    steps, errors = error.curves()["all"]
    assert steps == [0.0, 1.0]
    assert errors == pytest.approx([expected] * 2, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_random_subspace_misses_nearly_everything(dtype: torch.dtype) -> None:
    mechanism = qg.methods.rpdp_sgd(rank=10)
    error = ProjectionError(mechanism)
    watched(mechanism, error, dtype=dtype)
    assert min(error.curves()["all"][1]) > 0.9


def test_stable_ranks_are_numpys() -> None:
    mechanism = qg.methods.pdp_sgd(labelled, rank=5)
    ranks = StableRanks(mechanism)
    watched(mechanism, ranks, micro=64)
    rows, basis = private_rows(small_net(torch.float64)), numpy_basis(5)
    for label, matrix in (("gradients", rows), ("residuals", rows - rows @ basis.T @ basis)):
        expected = np.linalg.norm(matrix) ** 2 / np.linalg.norm(matrix, 2) ** 2
        assert ranks.curves()[f"part0: {label}"][1] == pytest.approx([expected] * 2, rel=1e-6)


def test_the_spectrum_is_numpys() -> None:
    spectrum = EigenvalueSpectrum(steps=(1,), largest=3)
    watched(qg.methods.dp_sgd(), spectrum, micro=64)
    rows = private_rows(small_net(torch.float64))
    expected = np.linalg.svd(rows)[1][:3] ** 2 / len(rows)
    assert list(spectrum.curves()) == ["step 1"]
    order, values = spectrum.curves()["step 1"]
    assert order == [1.0, 2.0, 3.0]
    assert values == pytest.approx(list(expected), rel=1e-6)


def test_stable_rank_lies_between_one_and_the_rank() -> None:
    assert stable_rank(torch.ones(4, 7)) == pytest.approx(1.0)
    assert stable_rank(torch.eye(5)) == pytest.approx(5.0)
    assert stable_rank(torch.zeros(3, 3)) == 0.0


class Axes:
    """Stands for a matplotlib axes."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.settings: dict[str, str] = {}
        self.scale = "linear"

    def plot(self, x: list[float], y: list[float], label: str) -> None:
        assert len(x) == len(y) > 0
        self.labels.append(label)

    def set(self, **settings: str) -> None:
        self.settings = settings

    def set_yscale(self, scale: str) -> None:
        self.scale = scale

    def legend(self) -> None: ...


def test_every_figure_draws_itself_and_says_that_it_is_not_private() -> None:
    mechanism = qg.methods.gep(labelled, rank=6, groups=2)
    for figure in (ProjectionError(mechanism), StableRanks(mechanism), EigenvalueSpectrum(steps=(0,))):
        watched(mechanism, figure)
        axes = Axes()
        figure.draw(axes)
        assert axes.labels == list(figure.curves())
        assert "not private" in axes.settings["title"]


def test_they_are_refused_outside_research_mode() -> None:
    mechanism = qg.methods.gep(labelled, rank=6)
    with (
        privatizer(mechanism.with_noise(1.0), [ROWS], model=small_net(torch.float64)) as (private, _, _),
        pytest.raises(ValueError, match="research=True"),
    ):
        private.watch(ProjectionError(mechanism))


def test_a_mechanism_without_a_subspace_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no subspace"):
        ProjectionError(qg.methods.dp_sgd())
