"""The paper's figures 2 and 3 in research mode: stable rank and projection residuals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad._representations.low_rank.carriers import Carriers
from quietgrad.lab.diagnostics.low_rank import (
    LowRankObserver,
    principal_carriers,
    projection_residual,
    stable_rank,
)
from tests.cases.world import mean_gradient, privatizer, records, run, small_net

ROWS = [0, 4, 5, 11, 30, 31]
MATRICES = ("conv.weight", "hidden.weight")


def test_stable_rank() -> None:
    assert stable_rank(torch.eye(5)) == pytest.approx(5.0)
    assert stable_rank(torch.outer(torch.randn(7), torch.randn(4))) == pytest.approx(1.0, rel=1e-5)
    assert stable_rank(torch.diag(torch.tensor([2.0, 1.0]))) == pytest.approx(5 / 4)
    assert stable_rank(torch.zeros(3, 3)) == 0.0


def test_residual_with_its_own_principal_directions_is_the_tail_of_the_spectrum() -> None:
    matrix = torch.randn(9, 6, dtype=torch.float64)
    values = torch.linalg.svdvals(matrix)
    expected = values[2:].norm() / values.norm()
    assert projection_residual(matrix, principal_carriers(matrix, 2)) == pytest.approx(float(expected))


def test_residual_of_unrelated_and_of_containing_directions() -> None:
    left, right = torch.eye(6)[:, :2], torch.eye(6)[:2]
    inside, outside = torch.zeros(6, 6), torch.zeros(6, 6)
    inside[0, 5] = inside[5, 1] = 1.0
    outside[3, 4] = 1.0
    assert projection_residual(inside, Carriers(left, right)) == 0.0
    assert projection_residual(outside, Carriers(left, right)) == 1.0


def observed(
    mechanism: qg.Mechanism, draws: list[list[int]], net: nn.Module, **options: int
) -> LowRankObserver:
    observer = LowRankObserver(rank=2, matrices=MATRICES, **options)
    data = records(torch.float64)
    with privatizer(mechanism, draws, model=net, data=data, research=True) as (private, batches, model):
        private.watch(observer)
        run(private, batches, model, micro=4)
    return observer


def test_reports_are_those_of_the_batch_gradient() -> None:
    """A model that stands still has the same gradient on the same batch: the last one fits as its own."""
    net = small_net(torch.float64)
    mechanism = qg.methods.rgp(rank=2, matrices=MATRICES).with_noise(1.0)
    reports = observed(mechanism, [ROWS, ROWS], net).reports
    assert [(report.step, report.name) for report in reports] == [
        (s, name) for s in (0, 1) for name in MATRICES
    ]
    whole = mean_gradient(small_net(torch.float64), records(torch.float64), ROWS, divisor=1.0)
    for report in reports:
        gradient = whole[report.name].flatten(1)
        assert report.stable_rank == pytest.approx(stable_rank(gradient), rel=1e-6)
        assert report.carrier_residual is not None
        assert report.self_residual < report.carrier_residual <= 1.0
    assert reports[0].historical_residual is None
    assert reports[2].historical_residual == pytest.approx(reports[2].self_residual, rel=1e-6)


def test_every_so_many_steps_and_without_carriers() -> None:
    mechanism = qg.methods.dp_sgd().with_noise(1.0)
    reports = observed(mechanism, [ROWS] * 5, small_net(torch.float64), every=2).reports
    assert sorted({report.step for report in reports}) == [0, 2, 4]
    assert all(report.carrier_residual is None for report in reports)


def test_only_in_research_mode() -> None:
    with (
        privatizer(qg.methods.rgp(rank=1).with_noise(1.0), [ROWS]) as (private, _, _),
        pytest.raises(ValueError, match="research=True"),
    ):
        private.watch(LowRankObserver(rank=1))
