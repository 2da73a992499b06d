"""`explain` looks at a step and changes nothing: not its basis, not the state, not what is released afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import losses_of, privatizer, public_losses

DRAWS = [[0, 1, 2], [3, 4], [], [5, 6, 7], [8]]


def trained(
    mechanism: qg.Mechanism, *, explaining: bool
) -> list[tuple[Any, list[Tensor], dict[str, Tensor]]]:
    """Of every step the state, the encoded gradient of a fixed probe and what was released."""
    history = []
    with privatizer(mechanism, DRAWS) as (private, batches, model):
        for batch in batches:
            for x, y in batch.split(8):
                if explaining:
                    _explain_and_compare(private)
                losses = losses_of(model, x, y)
                if explaining:
                    _explain_and_compare(private)
                private.backward(losses)
            if explaining:
                private.explain()
            sums = [block for total in private.begin_step().sums for block in total.blocks.values()]
            private.release()
            if explaining:
                private.explain()
            released = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            history.append((private.state_dict()["representations"], sums, released))
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.sub_(0.1 * p.grad)
    return history


def _explain_and_compare(private: qg.Privatizer) -> None:
    step, states = private.step_in_progress, private.state_dict()["representations"]
    private.explain()
    assert private.step_in_progress is step, "explain() began the step"
    assert same(private.state_dict()["representations"], states)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def gep(refresh_every: int) -> qg.Mechanism:
    return qg.methods.gep(public_losses, rank=4, clip=1.0, residual_clip=1.0, refresh_every=refresh_every)


@pytest.mark.parametrize("refresh_every", [1, 2, 3])
def test_a_stored_basis_is_the_same_with_and_without(refresh_every: int) -> None:
    mechanism = gep(refresh_every).with_noise(1.0)
    assert same(trained(mechanism, explaining=True), trained(mechanism, explaining=False))


@pytest.mark.parametrize("case", BY_FAMILY)
def test_every_method_releases_the_same_with_and_without(case: MethodCase) -> None:
    mechanism = case.build(0.5).with_noise(1.0)
    assert same(trained(mechanism, explaining=True), trained(mechanism, explaining=False))


def test_the_private_batch_in_public_losses_is_still_refused() -> None:
    """The check holds the basis's own inputs against the batch; a basis that explain() had stored would have none."""
    current: dict[str, Tensor] = {}

    def leaking(model: nn.Module) -> Tensor:
        return losses_of(model, current["x"], torch.zeros(len(current["x"]), dtype=torch.long))

    mechanism = qg.methods.gep(leaking, rank=2, refresh_every=3).with_noise(1.0)
    with privatizer(mechanism, [[0, 1, 2, 3]]) as (private, batches, model):
        for x, y in next(iter(batches)).split(8):
            current["x"] = x
            for use in (private.explain, lambda x=x, y=y: losses_of(model, x, y), private.begin_step):
                with pytest.raises(qg.PrivacyError, match="fed the private batch to the model"):
                    use()


def test_the_next_step_has_the_weights_that_training_gave_it() -> None:
    """explain() after a release and before the optimizer's step must not fix the next step's basis."""
    with privatizer(gep(1).with_noise(1.0), [[0], [1]]) as (private, batches, model):
        for batch in batches:
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            for x, y in batch.split(8):
                private.backward(losses_of(model, x, y))
            assert same(dict(private.begin_step().public.parameters), weights)
            private.release()
            private.explain()
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.sub_(p.grad)


def test_layers_are_those_of_the_last_private_batch() -> None:
    with privatizer(gep(1).with_noise(1.0), [[0, 1]]) as (private, batches, model):
        for x, y in next(iter(batches)).split(8):
            private.backward(losses_of(model, x, y))
        private.release()
        assert private.explain().layers == private.explain().layers
