"""Plain backwards beside the private step: refused before they touch p.grad, and only those."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.cases.world import losses_of, privatizer, records, small_net

MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def rows() -> tuple[Tensor, Tensor]:
    x, y = records()[[0, 1]]
    return x, y


def test_a_plain_backward_is_refused_with_the_remedy() -> None:
    with privatizer(MECHANISM, [[0, 1]]) as (_, __, model):
        with pytest.raises(ValueError, match=r"private\.backward"):
            losses_of(model, *rows()).mean().backward()
        assert all(p.grad is None for p in model.parameters())


def test_a_scaled_backward_is_refused() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with (
        privatizer(MECHANISM, [[0, 1]]) as (_, __, model),
        pytest.raises(ValueError, match="no GradScaler"),
    ):
        scaler.scale(losses_of(model, *rows()).mean()).backward()


def test_scaled_losses_are_refused() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with privatizer(MECHANISM, [[0, 1]]) as (private, batches, model):
        for x, y in next(iter(batches)).split(8):
            losses = losses_of(model, x, y)
            with pytest.raises(ValueError, match="65536, as GradScaler"):
                private.backward(scaler.scale(losses))
            private.backward(losses * torch.tensor(0.5))
        private.release()


def test_a_backward_is_refused_after_the_model_changed_its_dtype() -> None:
    with privatizer(MECHANISM, [[]]) as (private, batches, model):
        model.double()
        next(iter(batches))
        private.release()
        with pytest.raises(ValueError, match=r"private\.backward"):
            losses_of(model, rows()[0].double(), rows()[1]).mean().backward()


def test_a_backward_is_refused_after_the_model_changed_its_dtype_and_back() -> None:
    """As to save it in half precision: the parameters look as before and have new nodes."""
    with privatizer(MECHANISM, [[]]) as (private, batches, model):
        model.double().float()
        next(iter(batches))
        private.release()
        with pytest.raises(ValueError, match=r"private\.backward"):
            losses_of(model, *rows()).mean().backward()


def test_public_gradients_can_be_taken_by_hand_and_for_other_models() -> None:
    generator = nn.Linear(4, 36)
    with privatizer(MECHANISM, [[0, 1]]) as (_, __, model):
        score = model(generator(torch.randn(2, 4)).view(2, 1, 6, 6)).sum()
        score.backward(inputs=list(generator.parameters()), retain_graph=True)
        assert generator.weight.grad is not None
        assert len(torch.autograd.grad(score, list(model.parameters()))) == 8
        assert all(p.grad is None for p in model.parameters())


def test_a_closed_model_trains_as_before() -> None:
    model = small_net()
    with privatizer(MECHANISM, [[0, 1]], model=model):
        pass
    losses_of(model, *rows()).mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("copying", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_made_under_the_hooks_is_a_plain_model(copying: str) -> None:
    x, y = rows()
    with privatizer(MECHANISM, [[0, 1]]) as (private, batches, model):
        twin = copied(model, copying)
        losses_of(twin, x, y).mean().backward()
        assert all(p.grad is not None for p in twin.parameters())
        for micro in next(iter(batches)).split(8):
            private.backward(losses_of(model, *micro))
        private.release()
        assert torch.equal(twin(x), model(x))


def copied(model: nn.Module, copying: str) -> nn.Module:
    file, twin = io.BytesIO(), copy.deepcopy(model)
    if copying == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    elif copying == "torch.save":
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    return twin


@pytest.mark.parametrize("part", [False, True])
def test_a_backward_is_refused_after_the_model_changed_its_dtype_between_two_steps(part: bool) -> None:
    """Saved in half precision after a release: the new nodes are watched before the next step has any gradient."""
    with privatizer(MECHANISM, [[], [0, 1]]) as (private, batches, model):
        drawn = iter(batches)
        next(drawn)
        private.release()
        model.half().float()
        next(drawn)
        given = next(model.children())(rows()[0]) if part else losses_of(model, *rows())
        with pytest.raises(ValueError, match=r"private\.backward"):
            given.mean().backward()


def test_a_backward_through_a_parameter_alone_is_refused_after_the_model_changed_its_dtype() -> None:
    """No module is called, so that no forward tells of the new nodes: the release has looked at them."""
    with privatizer(MECHANISM, [[]]) as (private, batches, model):
        model.half().float()
        next(iter(batches))
        private.release()
        with pytest.raises(ValueError, match=r"private\.backward"):
            sum(p.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
