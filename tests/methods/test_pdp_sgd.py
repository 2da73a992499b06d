"""PDP-SGD and RPDP-SGD: DP-SGD's release, projected as numpy projects it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad.accounting import events
from tests.cases.world import privatizer, public_losses, run, small_net
from tests.methods.test_gep import HUGE, ROWS, labelled, numpy_gradients, private_rows, relative, released


def numpy_projection(rank: int) -> np.ndarray:
    """VVᵀ of the top eigenvectors of the public second-moment matrix."""
    model: nn.Module = small_net(torch.float64)
    anchors = numpy_gradients(model, labelled(model))
    vectors = np.linalg.eigh(anchors.T @ anchors / len(anchors))[1][:, -rank:]
    projection: np.ndarray = vectors @ vectors.T
    return projection


@pytest.mark.parametrize("strength", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("micro", [2, 64])
def test_without_noise_it_is_the_projected_mean_gradient(strength: float, micro: int) -> None:
    mean = private_rows(small_net(torch.float64)).sum(0) / 10
    expected = strength * numpy_projection(5) @ mean + (1 - strength) * mean
    mechanism = qg.methods.pdp_sgd(labelled, rank=5, clip=HUGE, strength=strength)
    assert relative(released(mechanism, micro), expected) < 1e-4


def steps_of(mechanism: Mechanism, steps: int, lr: float = 0.0) -> list[np.ndarray]:
    model: nn.Module = small_net(torch.float64)
    with privatizer(mechanism.with_noise(1.0), [ROWS] * steps, model=model) as (private, batches, model):
        history = run(private, batches, model, lr=lr)
    return [np.concatenate([block.numpy().ravel() for block in update.values()]) for update in history]


def test_the_noise_is_projected_too_and_only_from_the_start_step_on() -> None:
    plain = steps_of(qg.methods.dp_sgd(clip=1.0), 3)
    projected = steps_of(qg.methods.pdp_sgd(labelled, rank=5, clip=1.0, start_step=1), 3)
    projection = numpy_projection(5)
    assert np.array_equal(plain[0], projected[0])
    for step in (1, 2):
        assert relative(projected[step], projection @ plain[step]) < 1e-4


def test_the_subspace_is_kept_between_refreshes() -> None:
    """The model moves, so a fresh subspace would differ; five steps share two subspaces of rank 4."""
    updates = np.stack(steps_of(qg.methods.pdp_sgd(labelled, rank=4, refresh_every=10), 6, lr=0.5))
    assert np.linalg.matrix_rank(updates, tol=1e-8 * np.linalg.norm(updates)) == 4
    fresh = np.stack(steps_of(qg.methods.pdp_sgd(labelled, rank=4), 6, lr=0.5))
    assert np.linalg.matrix_rank(fresh, tol=1e-8 * np.linalg.norm(fresh)) == 6


def test_a_random_projection_of_its_rank_that_is_redrawn() -> None:
    plain = steps_of(qg.methods.dp_sgd(clip=1.0), 8)
    kept = np.stack(steps_of(qg.methods.rpdp_sgd(rank=3, clip=1.0, refresh_every=100), 8))
    assert np.linalg.matrix_rank(kept, tol=1e-8 * np.linalg.norm(kept)) == 3
    redrawn = steps_of(qg.methods.rpdp_sgd(rank=3, clip=1.0), 8)
    assert np.linalg.matrix_rank(np.stack(redrawn), tol=1e-8 * np.linalg.norm(redrawn)) == 8
    # A projection: never longer, and ⟨g, Pg⟩ = ‖Pg‖².
    for whole, part in zip(plain, redrawn, strict=True):
        assert part @ whole == pytest.approx(part @ part, rel=1e-6)


def test_it_costs_what_dp_sgd_costs() -> None:
    for mechanism in (qg.methods.pdp_sgd(public_losses, rank=5), qg.methods.rpdp_sgd(rank=5)):
        calibrated = mechanism.with_noise(3.0)
        assert calibrated.event(0) == events.GaussianEvent(noise_multiplier=3.0)
        assert calibrated.std(calibrated.releases[0], 0) == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"strength": 1.5}, "strength"), ({"strength": -0.1}, "strength"), ({"start_step": -1}, "start_step")],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qg.methods.pdp_sgd(public_losses, rank=5, **options)  # type: ignore[arg-type]


def test_rank_above_the_public_gradients_is_refused() -> None:
    mechanism = qg.methods.pdp_sgd(public_losses, rank=30).with_noise(1.0)
    with (
        pytest.raises(ValueError, match="rank <= 24"),
        privatizer(mechanism, [ROWS]) as (private, batches, model),
    ):
        run(private, batches, model)
