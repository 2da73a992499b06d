"""State that the model keeps: un-noised numbers of private records, saved with the checkpoint.

The adversary reads the model that is published: a buffer, a frozen parameter, an attribute. Each of these models must
be refused before its step is released (a `ValueError` with the remedy), or hold nothing of the records afterwards.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg

WIDTH = 4
SECRET = 12345.0


class Keeper(nn.Module):
    """A linear model; subclasses remember the batch in some way."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("kept", torch.zeros(WIDTH))
        self.frozen = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
        self.plain = torch.zeros(WIDTH)
        self.listed: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.remember(x)
        out: Tensor = self.head(x)[:, 0]
        return out

    def remember(self, x: Tensor) -> None:
        """Where subclasses sin."""


class BufferInPlace(Keeper):
    def remember(self, x: Tensor) -> None:
        self.kept += x.detach().sum(0)


class BufferData(Keeper):
    """`.data` does not count as a change of the tensor."""

    def remember(self, x: Tensor) -> None:
        self.kept.data += x.detach().sum(0)


class BufferThroughNumpy(Keeper):
    def remember(self, x: Tensor) -> None:
        self.kept.numpy()[:] += x.detach().sum(0).numpy()


class BufferReplaced(Keeper):
    def remember(self, x: Tensor) -> None:
        self.kept = x.detach().sum(0)


class BufferNew(Keeper):
    def remember(self, x: Tensor) -> None:
        self.register_buffer("another", x.detach().sum(0))


class FrozenParameter(Keeper):
    def remember(self, x: Tensor) -> None:
        with torch.no_grad():
            self.frozen.add_(x.sum(0))


class FrozenData(Keeper):
    def remember(self, x: Tensor) -> None:
        self.frozen.data.copy_(x.sum(0))


class TrainedParameterData(Keeper):
    """Also what is trained may only move by releases."""

    def remember(self, x: Tensor) -> None:
        self.head.weight.data[0] = x.detach().sum(0)


class PlainAttribute(Keeper):
    def remember(self, x: Tensor) -> None:
        self.plain = x.detach().sum(0)


class PlainInPlace(Keeper):
    def remember(self, x: Tensor) -> None:
        self.plain.data += x.detach().sum(0)


class PlainList(Keeper):
    def remember(self, x: Tensor) -> None:
        self.listed.append(x.detach().sum(0))


class ChangedInBackward(Keeper):
    """The hook runs when the gradients do, after the forward was checked."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)

        def hook(_: Tensor) -> None:
            self.kept.data.copy_(x.detach().sum(0))

        if out.requires_grad:
            out.register_hook(hook)
        return out


KEEPERS = [
    BufferInPlace,
    BufferData,
    BufferThroughNumpy,
    BufferReplaced,
    BufferNew,
    FrozenParameter,
    FrozenData,
    TrainedParameterData,
    PlainAttribute,
    PlainInPlace,
    PlainList,
    ChangedInBackward,
]


def largest_number(model: nn.Module) -> float:
    """The largest number anywhere in the model."""
    tensors: list[Tensor] = [*model.state_dict().values()]
    for value in vars(model).values():
        tensors += [
            part for part in (value if isinstance(value, list) else [value]) if isinstance(part, Tensor)
        ]
    return max(float(tensor.abs().max()) for tensor in tensors)


def secrets() -> TensorDataset:
    return TensorDataset(torch.full((8, WIDTH), SECRET))


@pytest.mark.parametrize("build", KEEPERS)
def test_a_model_that_remembers_is_refused_or_emptied(build: type[Keeper]) -> None:
    """On 0.1: accepted and kept, except for buffers changed in place, replaced or made anew in the forward."""
    model, batches = build(), qg.PoissonBatches(secrets(), rate=1.0, steps=1)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        try:
            for batch in batches:
                for (x,) in batch.split(8):
                    private.backward(model(x))
                private.release()
        except ValueError:
            return
    assert largest_number(model) < SECRET


def test_a_buffer_changed_after_the_backward_is_refused() -> None:
    """The loop itself keeps a running mean. On 0.1: accepted."""
    model, batches = Keeper(), qg.PoissonBatches(secrets(), rate=1.0, steps=1)
    private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)

    def step() -> None:
        for (x,) in next(iter(batches)).split(8):
            private.backward(model(x))
            model.kept.copy_(x.mean(0))
        private.release()

    with private, pytest.raises(qg.PrivacyError, match="kept"):
        step()


class TeacherKeeps(Keeper):
    """Keeps something where no gradients are taken: a teacher's forward, which comes before the student's."""

    def remember(self, x: Tensor) -> None:
        if not torch.is_grad_enabled():
            self.kept.copy_(x.sum(0))


@pytest.mark.parametrize("begins", [0, 5])
@pytest.mark.parametrize("with_loader", [False, True])
def test_what_a_teacher_keeps_is_refused(with_loader: bool, begins: int) -> None:
    """The model was remembered at the first forward with gradients, and what was written before counted as public.

    Where the loop is asked, the first micro-batches showed it by chance.
    """
    model, mechanism = TeacherKeeps(), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    batches = qg.PoissonBatches(secrets(), rate=1.0, steps=8)
    sampler = qg.PoissonSampler(8, rate=1.0, steps=8)
    loader = DataLoader(secrets(), batch_sampler=sampler)

    def train(private: qg.Privatizer) -> None:
        for drawn in loader if with_loader else batches:
            for (x,) in [drawn] if with_loader else drawn.split(8):
                if private.step >= begins:
                    with torch.no_grad():
                        model(x)
                private.backward(model(x))
            private.release()

    with qg.Privatizer(model, mechanism, sampler if with_loader else batches) as private:
        with pytest.raises(qg.PrivacyError, match="buffer 'kept'"):
            train(private)
        assert private.step == begins


@pytest.mark.filterwarnings("ignore:.*was not checked")
@pytest.mark.parametrize("with_loader", [False, True])
def test_a_test_on_averaged_weights_is_accepted_within_a_step(with_loader: bool) -> None:
    """It runs in evaluation mode, and the weights are put back before the step begins."""
    model, mechanism = Keeper(), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    batches = qg.PoissonBatches(secrets(), rate=1.0, steps=2)
    sampler = qg.PoissonSampler(8, rate=1.0, steps=2)
    loader = DataLoader(secrets(), batch_sampler=sampler)
    with qg.Privatizer(model, mechanism, sampler if with_loader else batches) as private:
        for drawn in loader if with_loader else batches:
            with torch.no_grad():
                model.eval()
                model.head.weight.mul_(2)
                model(torch.ones(1, WIDTH))
                model.head.weight.div_(2)
                model.train()
            for (x,) in [drawn] if with_loader else drawn.split(8):
                private.backward(model(x))
            private.release()
    assert private.step == 2


def test_public_changes_between_the_steps_are_accepted() -> None:
    """A schedule in a buffer, an average of released weights: neither has seen a record."""
    model, batches = Keeper(), qg.PoissonBatches(secrets(), rate=1.0, steps=3)
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(model(x))
            private.release()
            assert model.head.weight.grad is not None
            with torch.no_grad():
                model.head.weight -= 0.1 * model.head.weight.grad
                model.kept.copy_(0.9 * model.kept + 0.1 * model.head.weight[0])
    assert private.step == 3
