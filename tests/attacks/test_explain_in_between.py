"""`private.explain()` before the forward or the backward: it must only look.

With a basis that is kept for several steps, it computed and stored that step's basis, and the check for private records
among the public losses did not run again when the step itself used it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


class LoopVariable:
    """Public losses that read the variable of the training loop."""

    def __init__(self) -> None:
        self.batch = torch.zeros(8, 4)

    def __call__(self, model: nn.Module) -> Tensor:
        losses: Tensor = model(self.batch)[:, 0]
        return losses


@pytest.mark.parametrize("explained", [False, True])
@pytest.mark.parametrize("refresh", [1, 3])
def test_private_records_among_public_losses_are_refused_after_explain(refresh: int, explained: bool) -> None:
    """On 0.1: refused, but not after explain() with a basis kept for three steps."""
    public, model = LoopVariable(), net()
    mechanism = qg.methods.gep(public, rank=4, refresh_every=refresh).with_noise(1.0)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 4)), rate=1.0, steps=1)
    with qg.Privatizer(model, mechanism, batches) as private:
        (public.batch,) = next(next(iter(batches)).split(8))
        if explained:
            with pytest.raises(ValueError, match="private batch"):
                private.explain()
        with pytest.raises(ValueError, match="private batch"):
            private.backward(model(public.batch)[:, 0])


@pytest.mark.parametrize("refresh", [1, 3])
def test_private_records_are_refused_in_a_step_begun_before_its_losses(refresh: int) -> None:
    """`begin_step()` chooses the basis of a step when the batch was handed out but not passed yet."""
    public, model = LoopVariable(), net()
    mechanism = qg.methods.gep(public, rank=4, refresh_every=refresh).with_noise(1.0)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 4)), rate=1.0, steps=1)
    with qg.Privatizer(model, mechanism, batches) as private:
        (public.batch,) = next(next(iter(batches)).split(8))
        with pytest.raises(ValueError, match="private batch"):
            private.begin_step().codec(0)


def test_a_step_begun_again_keeps_the_basis_that_was_checked() -> None:
    """A loop is left and its draw handed out again: the stored basis stays, and no public loss is asked for anew."""
    public, model, asked = LoopVariable(), net(), []

    def counted(model: nn.Module) -> Tensor:
        asked.append(public.batch)
        return public(model)

    mechanism = qg.methods.gep(counted, rank=4, refresh_every=3).with_noise(1.0)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 4)), rate=1.0, steps=4)
    with qg.Privatizer(model, mechanism, batches) as private:
        (rows,) = next(next(iter(batches)).split(8))
        private.backward(model(rows)[:, 0])
        seen = len(asked)
        (public.batch,) = next(next(iter(batches)).split(8))
        private.backward(model(public.batch)[:, 0])
        private.release()
        assert len(asked) == seen > 0


def test_explain_does_not_choose_the_basis_of_a_step() -> None:
    """Public losses change between explain() and the forward: the step's basis must be of the later ones.

    A constant gradient along the first coordinate is released; on 0.1 explain() had fixed the second as its basis.
    """
    direction = torch.tensor([0.0, 1.0])

    def public(model: nn.Module) -> Tensor:
        losses: Tensor = model(direction.expand(4, -1))[:, 0]
        return losses

    model = nn.Linear(2, 1, bias=False)
    mechanism = qg.methods.biased_gep(public, rank=1, refresh_every=10).with_noise(0.0)
    batches = qg.PoissonBatches(TensorDataset(torch.tensor([[0.5, 0.0]])), rate=1.0, steps=1)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.explain()
                direction = torch.tensor([1.0, 0.0])
                losses = model(x)[:, 0]
                private.explain()
                private.backward(losses)
            private.release()
    assert model.weight.grad is not None
    assert float(model.weight.grad[0, 0]) == pytest.approx(0.5, rel=1e-3)
