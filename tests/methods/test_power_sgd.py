"""DP-PowerSGD: DP-SGD's release, then a rank-r projection of what is already public."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad.methods.power_sgd import PowerProjection
from tests.cases.world import privatizer, run, small_net

DRAWS = [[0, 1, 2], [3, 4], [], [5, 6, 7], [8]]
MATRICES = ("conv.weight", "hidden.weight")


def histories(*mechanisms: qg.Mechanism) -> list[list[dict[str, Tensor]]]:
    """Runs with the same noise; the model stands still, so that the releases are the same too."""
    found = []
    for mechanism in mechanisms:
        with privatizer(mechanism, DRAWS, model=small_net()) as (private, batches, model):
            found.append(run(private, batches, model))
    return found


def test_matrices_are_projected_and_the_rest_is_dp_sgd() -> None:
    plain, projected = histories(
        qg.methods.dp_sgd(clip=0.5).with_noise(1.0),
        qg.methods.dp_power_sgd(rank=2, clip=0.5, matrices=MATRICES).with_noise(1.0),
    )
    for whole, low in zip(plain, projected, strict=True):
        for name, gradient in whole.items():
            if name not in MATRICES:
                assert torch.equal(low[name], gradient)
                continue
            matrix, got = gradient.flatten(1), low[name].flatten(1)
            values = torch.linalg.svdvals(got)
            assert values[1] > 0
            assert values[2] < 1e-5 * values[0]
            # PQᵀ = PPᵀM: an orthogonal projection of the columns, so it and the rest are at right angles.
            assert abs(float((got * (matrix - got)).sum())) < 1e-4 * float(matrix.square().sum())


def test_a_gradient_of_that_rank_is_returned_whole() -> None:
    post = PowerProjection(rank=2, matrices=("hidden.weight",))
    with privatizer(qg.methods.dp_sgd().with_noise(1.0), [[0]]) as (private, batches, model):
        public = private.begin_step().public
        state = post.init(public)
        gradient = torch.randn(8, 2) @ torch.randn(2, 36)
        update, _ = post.apply({"hidden.weight": gradient}, public, state)
        run(private, batches, model)
    torch.testing.assert_close(update["hidden.weight"], gradient, atol=1e-4, rtol=1e-4)


def test_the_error_of_the_noisy_gradient_is_fed_back() -> None:
    """Σ of what was returned plus the error that is kept = Σ of what was released: nothing is lost for good."""
    plain, fed = histories(
        qg.methods.dp_sgd(clip=0.5).with_noise(1.0),
        qg.methods.dp_power_sgd(rank=1, clip=0.5, error_feedback=True).with_noise(1.0),
    )
    with privatizer(
        qg.methods.dp_power_sgd(rank=1, clip=0.5, error_feedback=True).with_noise(1.0), DRAWS
    ) as parts:
        run(*parts)
        errors = parts[0].state_dict()["post"][0]["error"]
    for name in MATRICES:
        returned = torch.stack([step[name] for step in fed]).sum(0).flatten(1)
        released = torch.stack([step[name] for step in plain]).sum(0).flatten(1)
        torch.testing.assert_close(returned + errors[name], released, atol=1e-5, rtol=1e-4)
        assert errors[name].norm() > 0


def test_without_feedback_no_error_is_kept() -> None:
    with privatizer(qg.methods.dp_power_sgd(rank=1).with_noise(1.0), DRAWS) as (private, batches, model):
        run(private, batches, model)
        assert list(private.state_dict()["post"][0]) == ["start"]


def test_the_start_of_the_power_iteration_is_kept_between_steps() -> None:
    """For a gradient that stays the same, iterating on finds its principal directions."""
    post = PowerProjection(rank=2, matrices=("hidden.weight",))
    gradient = torch.randn(8, 36)
    best = torch.linalg.svdvals(gradient)[:2].norm()
    with privatizer(qg.methods.dp_sgd().with_noise(1.0), [[0]]) as (private, batches, model):
        public = private.begin_step().public
        state = post.init(public)
        kept = []
        for _ in range(40):
            update, state = post.apply({"hidden.weight": gradient}, public, state)
            kept.append(float(update["hidden.weight"].norm()))
        run(private, batches, model)
    assert kept[0] < 0.98 * best
    assert kept[-1] == pytest.approx(float(best), rel=1e-3)


@pytest.mark.parametrize("feedback", [False, True])
def test_a_run_goes_on_from_a_checkpoint(feedback: bool) -> None:
    def build() -> qg.Mechanism:
        return qg.methods.dp_power_sgd(rank=1, clip=0.5, error_feedback=feedback).with_noise(0.0)

    with privatizer(build(), DRAWS) as (private, batches, model):
        whole = run(private, batches, model, lr=0.3)
    with privatizer(build(), DRAWS) as (private, batches, model):
        run(private, itertools.islice(batches, 3), model, lr=0.3)
        file = io.BytesIO()
        torch.save({"private": private.state_dict(), "model": model.state_dict()}, file)
        ledger = private.ledger
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    net = small_net()
    net.load_state_dict(saved["model"])
    with privatizer(build(), DRAWS, model=net, ledger=ledger) as (private, batches, model):
        private.load_state_dict(saved["private"])
        rest = run(private, batches, model, lr=0.3)
    for a, b in zip(whole[3:], rest, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name])


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="rank >= 1, got 0"):
        qg.methods.dp_power_sgd(rank=0)
    with (
        privatizer(qg.methods.dp_power_sgd(rank=30).with_noise(1.0), [[0]]) as parts,
        pytest.raises(ValueError, match="No matrix is eligible"),
    ):
        run(*parts)


def test_resuming_with_another_rank_is_refused() -> None:
    with privatizer(qg.methods.dp_power_sgd(rank=1).with_noise(1.0), [[0]]) as (private, batches, model):
        run(private, batches, model)
        saved = private.state_dict()
    with (
        privatizer(qg.methods.dp_power_sgd(rank=2).with_noise(1.0), [[0]]) as (private, _, _),
        pytest.raises(ValueError, match="another mechanism"),
    ):
        private.load_state_dict(saved)
