"""What a model keeps during a step is refused by name; what follows from weights or public data is not."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._guards import model_state
from tests.cases.world import losses_of, privatizer, public_losses

MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


class Net(nn.Module):
    """A linear model that calls `keep(self, x)` in its forward."""

    def __init__(self, keep: Callable[[Net, Tensor], object] | None = None) -> None:
        super().__init__()
        self.line = nn.Linear(36, 3)
        self.register_buffer("seen", torch.zeros(36))
        self.frozen = nn.Parameter(torch.zeros(36), requires_grad=False)
        self.lists: dict[str, list[Tensor]] = {"all": [torch.zeros(36)]}
        self.queue: deque[Tensor] = deque(maxlen=4)
        self.array = np.zeros(36)
        self.table: Tensor | None = None
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if self.keep is not None:
            self.keep(self, x.flatten(1))
        out: Tensor = self.line(x.flatten(1))
        return out


def step(model: nn.Module, mechanism: qg.Mechanism = MECHANISM, draws: int = 1) -> None:
    with privatizer(mechanism, [[0, 1, 2]] * draws, model=model) as (private, batches, _):
        train(private, batches, model)


def buffer_data(model: Net, x: Tensor) -> None:
    model.get_buffer("seen").data[3] += 1e-30 * len(x)  # far below what a sum of floats would show


def frozen(model: Net, x: Tensor) -> None:
    model.frozen.data.copy_(x.mean(0))


def trained(model: Net, x: Tensor) -> None:
    model.line.weight.data[0, 0] += len(x)


def in_a_list(model: Net, x: Tensor) -> None:
    model.lists["all"][0].data += x.mean(0)


def in_a_dictionary(model: Net, x: Tensor) -> None:
    model.lists["new"] = [x.mean(0)]


def in_a_queue(model: Net, x: Tensor) -> None:
    model.queue.append(x.mean(0))


def in_an_array(model: Net, x: Tensor) -> None:
    model.array += x.mean(0).numpy()


def zero(model: Net, x: Tensor) -> None:
    model.get_buffer("seen").add_(0 * x.mean(0))


@pytest.mark.parametrize(
    ("keep", "named"),
    [
        (buffer_data, "buffer 'seen'"),
        (frozen, "parameter 'frozen'"),
        (trained, "parameter 'line.weight'"),
        (in_a_list, r"attribute \"lists\['all'\]\[0\]\""),
        (in_a_dictionary, r"attribute \"lists\['new'\]\[0\]\""),
        (in_a_queue, r"attribute 'queue\[0\]'"),
        (in_an_array, "attribute 'array'"),
        (zero, "buffer 'seen'"),
    ],
)
def test_what_is_kept_is_refused_by_name(keep: Callable[[Net, Tensor], None], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        step(Net(keep))


def cached_table(net: Net, x: Tensor) -> None:
    """As rotary embeddings do: a table for the longest input so far."""
    if net.table is None or len(net.table) < x.shape[1]:
        net.table = torch.arange(x.shape[1]).cos()


def test_a_table_for_the_longest_input_is_refused_unless_it_was_made_before() -> None:
    """Made in a step it tells the longest record; made from inputs that are no records it tells nothing."""
    model = Net(cached_table)
    with pytest.raises(ValueError, match=r"'table'.*made-up inputs of that length"):
        step(model)
    model = Net(cached_table)
    model(torch.zeros(1, 36))
    step(model, draws=2)
    assert model.line.weight.grad is not None


def test_a_submodule_called_on_its_own_is_watched() -> None:
    """The loop calls the parts and never the model: the first part opens the step."""
    model = nn.ModuleDict({"features": nn.Linear(36, 4), "head": Net()})
    model["head"].line = nn.Linear(4, 3)
    with privatizer(MECHANISM, [[0, 1]], model=model) as (private, batches, _):
        for x, y in next(iter(batches)).split(8):
            hidden = model["features"](x.flatten(1))
            model["head"].get_buffer("seen").data += x.flatten(1).sum(0)
            private.backward(losses_of(model["head"], hidden, y))
        with pytest.raises(ValueError, match=r"head\.seen"):
            private.release()


def test_a_refused_step_stays_refused() -> None:
    with privatizer(MECHANISM, [[0]], model=Net(buffer_data)) as (private, batches, model):
        for _ in range(2):
            for x, y in next(iter(batches)).split(8):
                private.backward(losses_of(model, x, y))
            with pytest.raises(ValueError, match="seen"):
                private.release()
        assert private.ledger.count == 0


def test_a_forward_between_release_and_optimizer_step_does_no_harm() -> None:
    """Logged with gradients on, before the weights change: no batch is under way."""
    model = Net()
    with privatizer(MECHANISM, [[0, 1]] * 3, model=model) as (private, batches, _):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches:
            for x, y in batch.split(2):
                private.backward(losses_of(model, x, y))
            private.release()
            losses_of(model, x, y)
            optimizer.step()
        assert private.step == 3


@pytest.mark.parametrize(
    "norm",
    [
        nn.utils.parametrizations.spectral_norm,
        nn.utils.spectral_norm,
        nn.utils.weight_norm,
        lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", amount=3),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_torch_computes_from_weights_is_accepted(norm: Callable[[nn.Module], nn.Module]) -> None:
    """Frozen, since this is about the guard: vectors and weights are made again at every forward."""
    model = nn.Sequential(nn.Flatten(), norm(nn.Linear(36, 4).requires_grad_(False)), nn.Linear(4, 3))
    step(model, draws=2)


def test_a_public_forward_may_change_buffers() -> None:
    def count_public(model: Net, x: Tensor) -> None:
        if len(x) == 24:
            model.get_buffer("seen").add_(1)

    model = Net(count_public)
    step(model, qg.methods.gep(public_losses, rank=2).with_noise(1.0), draws=2)
    assert float(model.get_buffer("seen")[0]) >= 2


def test_a_public_forward_hides_nothing_private() -> None:
    """The private forward came first: what it changed stays refused."""
    model = Net(lambda model, x: model.get_buffer("seen").data.add_(x.mean(0)))
    with pytest.raises(ValueError, match="seen"):
        step(model, qg.methods.gep(public_losses, rank=2).with_noise(1.0))


def test_public_forwards_come_before_the_private_ones() -> None:
    """So that the model is remembered between them, and whatever a private forward changes shows."""
    sizes: list[int] = []
    model = Net(lambda _, x: sizes.append(len(x)) if torch.is_grad_enabled() else None)
    with privatizer(qg.methods.gep(public_losses, rank=2).with_noise(1.0), [[0, 1]] * 6, model=model) as made:
        private, batches, _ = made
        for batch in batches:
            sizes.clear()
            for x, y in batch.split(2):
                losses = losses_of(model, x, y)
                if not private.independence.is_asking:
                    assert sizes == [24, 2]
                private.backward(losses)
            private.release()
        assert private.step == 6


@pytest.mark.parametrize("name", ["turned", "frozen", "array", "counts"])
def test_one_odd_tensor_hides_no_other(name: str) -> None:
    """Tensors that are not read in place, or whose writes torch does not count, beside some that are."""

    def write(model: Net, x: Tensor) -> None:
        if private.step > model_state.WHOLE_STEPS:
            written = getattr(model, name)
            with torch.inference_mode(name == "counts"):
                (torch.from_numpy(written) if name == "array" else written.data)[0] += len(x)

    model = Net(write)
    model.register_buffer("turned", torch.zeros(3, 5).T)
    with torch.inference_mode():
        model.counts = torch.zeros(2)
    with privatizer(MECHANISM, [[0, 1]] * 6, model=model) as (private, batches, _):
        with pytest.raises(ValueError, match=name):
            train(private, batches, model)
        assert private.step == model_state.WHOLE_STEPS + 1


def test_what_one_micro_batch_leaves_does_not_reach_the_next() -> None:
    """Though it is put back before the release, as the state of a recurrent model may be."""
    model = Net(lambda model, x: setattr(model, "table", x.mean(0)))
    with privatizer(MECHANISM, [[0, 1, 2]], model=model) as (private, batches, _):
        parts = iter(next(iter(batches)).split(2))
        x, y = next(parts)
        with pytest.raises(ValueError, match="table"):
            private.backward(losses_of(model, x, y))
        model.table = None


class Fixed(random.Random):
    """A generator that always says the same."""

    def __init__(self, value: int) -> None:
        super().__init__(0)
        self.value = value

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return self.value


@pytest.mark.parametrize(("coin", "begins", "refused"), [(1, 2, True), (1, 3, False), (0, 3, True)])
@pytest.mark.parametrize("write", [frozen, trained])
def test_large_parameters_are_read_at_first_and_now_and_then_later(
    monkeypatch: pytest.MonkeyPatch,
    coin: int,
    begins: int,
    refused: bool,
    write: Callable[[Net, Tensor], None],
) -> None:
    """Written to through `.data`, which torch does not count, from step `begins` on. Sharp edge: it may go unseen."""
    monkeypatch.setattr(model_state, "SMALL", 0)
    monkeypatch.setattr(model_state, "_system_random", Fixed(coin))
    model = Net(lambda model, x: write(model, x) if private.step >= begins else None)
    outcome = pytest.raises(ValueError, match="parameter") if refused else contextlib.nullcontext()
    with privatizer(MECHANISM, [[0, 1]] * 5, model=model) as (private, batches, _), outcome:
        train(private, batches, model)


@pytest.mark.parametrize("write", [lambda p: p.add_(1.0), lambda p: setattr(p, "data", torch.ones_like(p))])
def test_counted_writes_and_other_tensors_are_seen_in_parameters_of_any_size(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Tensor], object]
) -> None:
    monkeypatch.setattr(model_state, "SMALL", 0)
    monkeypatch.setattr(model_state, "_system_random", Fixed(1))

    def keep(model: Net, _: Tensor) -> None:
        if private.step > model_state.WHOLE_STEPS:
            with torch.no_grad():
                write(model.frozen)

    model = Net(keep)
    with privatizer(MECHANISM, [[0, 1]] * 6, model=model) as (private, batches, _):
        with pytest.raises(qg.PrivacyError, match="parameter 'frozen'"):
            train(private, batches, model)
        assert private.step == model_state.WHOLE_STEPS + 1


def train(private: qg.Privatizer, batches: qg.PoissonBatches, model: nn.Module) -> None:
    for batch in batches:
        for x, y in batch.split(2):
            private.backward(losses_of(model, x, y))
        private.release()


@pytest.mark.parametrize("place", ["long", "bank"])
def test_what_a_later_forward_writes_is_seen(place: str) -> None:
    """Whole parameters and single elements of buffers, after the steps in which everything is read."""

    def write(model: nn.Module, x: torch.Tensor) -> None:
        if private.step > model_state.WHOLE_STEPS:
            written = model.get_parameter("long") if place == "long" else model.get_buffer("bank")[-1:]
            written.data.add_(x.mean())

    model = Net(write)
    model.register_parameter("long", nn.Parameter(torch.zeros(200_000), requires_grad=False))
    model.register_buffer("bank", torch.zeros(200_000))
    with privatizer(MECHANISM, [[0, 1]] * 6, model=model) as (private, batches, _):
        with pytest.raises(ValueError, match=place):
            train(private, batches, model)
        assert private.step == model_state.WHOLE_STEPS + 1


OTHER_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "strides": lambda table: table.as_strided((6, 6), (0, 1)),
    "transposed": lambda table: table.t(),
    "precision": lambda table: table.view(torch.int32),
    "shape": lambda table: table.view(4, 9),
}


@pytest.mark.parametrize("first", [0, 12])
@pytest.mark.parametrize("kind", OTHER_FORMS)
def test_what_is_kept_in_the_form_of_a_table_is_refused(kind: str, first: int) -> None:
    """The same bytes in the same place, read otherwise: a bit for each form that a forward may choose."""
    forwards, numbers = [], torch.arange(36.0).view(6, 6)

    def keep(model: Net, x: Tensor) -> None:
        forwards.append(len(x))
        if len(forwards) > first:
            model.get_buffer("form").data = OTHER_FORMS[kind](numbers)

    model = Net(keep)
    model.register_buffer("form", numbers.view(6, 6))
    with pytest.raises(ValueError, match="form"):
        step(model, draws=20)
