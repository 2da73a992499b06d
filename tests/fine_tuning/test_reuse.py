"""A draw used for several steps: right gradients, and noise that costs what the ledger says."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from benchmarks.fine_tuning import reuse
from benchmarks.fine_tuning.activations import Ragged
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting.events import effective_multiplier
from quietgrad.gradients import BlockwiseGrads, FactoredGrad
from quietgrad.mechanism.clipping import MARGIN
from quietgrad.sampling.batches import Batch

WIDTH, RECORDS = 6, 40


class Model(nn.Module):
    """Two matrices, one after the other, and a head on the mean of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        hidden = self.second(torch.tanh(self.first(hidden))) + hidden
        logits: Tensor = self.head(F.normalize((hidden * real[:, :, None]).sum(1)))
        return logits


@pytest.fixture
def table() -> Ragged:
    lengths = torch.arange(RECORDS) % 5 + 1
    return Ragged(torch.randn(int(lengths.sum()), WIDTH), lengths)


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(RECORDS) % 2


def test_lines_are_what_each_record_gives_alone(table: Ragged, labels: Tensor) -> None:
    model = Model()
    trained = reuse.Trained([model.first, model.second], model.head)
    found = reuse.lines(model, trained, table, _draw(labels))
    for record in range(RECORDS):
        logits = model(*table.read(torch.tensor([record])))[0]
        difference = logits[1] - logits[0]
        gradients = torch.autograd.grad(
            difference, [model.first.weight, model.second.weight, model.head.weight]
        )
        phi = [gradients[0].flatten(), gradients[1].flatten(), gradients[2][1], torch.ones(1)]
        torch.testing.assert_close(found.z[record], difference.detach())
        torch.testing.assert_close(found.phi[record], torch.cat(phi))
    assert torch.equal(found.truth, labels.float())


class Biased(Model):
    """The same, of which biases alone train: of a matrix, and of a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("bias" in name or "head" in name)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        return super().forward(self.norm(hidden), real)


def test_lines_of_biases_are_what_each_record_gives_alone(table: Ragged, labels: Tensor) -> None:
    model = Biased()
    trained = reuse.trained(nn.ModuleList([model.first, model.second, model.norm]), model.head)
    assert trained.layers == [model.first, model.norm]
    found = reuse.lines(model, trained, table, _draw(labels))
    for record in range(RECORDS):
        logits = model(*table.read(torch.tensor([record])))[0]
        of_biases = torch.autograd.grad(logits[1] - logits[0], [model.first.bias, model.norm.bias])
        torch.testing.assert_close(found.phi[record, : 2 * WIDTH], torch.cat(of_biases))


def test_layers_of_two_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="Freeze the others"):
        reuse.trained(nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 2)).vector()


def test_the_first_release_is_the_clipped_sum_of_the_losses_gradients(table: Ragged, labels: Tensor) -> None:
    model = Model()
    trained = reuse.Trained([model.first, model.second], model.head)
    steps, lines = (
        _steps(trained, labels, often=1, noise=1e-6),
        reuse.lines(model, trained, table, _draw(labels)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    steps.take(0, lines, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(values: dict[str, Tensor], hidden: Tensor, real: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, values, (hidden[None], real[None]))
        return F.cross_entropy(logits, label[None])

    each = vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(
        weights, *table.read(torch.arange(RECORDS)), labels
    )
    # In the coordinates of the difference the head's gradient is that of its second row.
    rows = [(g[:, 1] if name.startswith("head") else g).reshape(RECORDS, -1) for name, g in each.items()]
    norms = torch.cat(rows, dim=1).square().sum(1)
    factors = ((1 - MARGIN) * CLIP / norms.sqrt()).clamp(max=1)
    assert 0 < int((factors < 1).sum()) < RECORDS
    for name, parameter in model.named_parameters():
        expected = torch.tensordot(factors, each[name], dims=1) / (RATE * RECORDS)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-5)


def test_later_steps_follow_the_lines(table: Ragged, labels: Tensor) -> None:
    model = Model()
    trained = reuse.Trained([model.first, model.second], model.head)
    lines = reuse.lines(model, trained, table, _draw(labels))
    begin = theta = trained.vector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    steps = _steps(trained, labels, often=3, noise=1e-6)
    steps.take(0, lines, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))
    rate = torch.full_like(theta, 0.4)
    rate[2 * WIDTH**2 :] *= 2  # the head's rows go apart, each by the rate
    for _ in range(3):
        slopes = torch.sigmoid(lines.z + lines.phi @ (theta - begin)) - lines.truth
        rows = slopes[:, None] * lines.phi
        rows = rows * ((1 - MARGIN) * CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)
        theta = theta - rate * rows.sum(0) / (RATE * RECORDS)
    torch.testing.assert_close(trained.vector(), theta, rtol=1e-3, atol=1e-4)


def test_noise_of_all_steps_of_a_draw_is_worth_one_release() -> None:
    """No record: what is released is noise alone."""
    trained = reuse.Trained([nn.Linear(50, 50, bias=False)], nn.Linear(WIDTH, 2))
    steps = _steps(trained, torch.zeros(RECORDS, dtype=torch.long), often=9, noise=2.0)
    released = steps._released(0, torch.zeros(1), torch.zeros(1, 2507)) * RATE * RECORDS / CLIP
    std = float(released.square().mean().sqrt())
    # 2,507 coordinates: a tenth is seven standard errors.
    assert std == pytest.approx(2.0 * math.sqrt(9), rel=0.1)
    assert effective_multiplier([std] * 9) == pytest.approx(2.0, rel=0.1)


def test_an_empty_draw_is_released_as_noise() -> None:
    model = Model()
    trained = reuse.Trained([model.first, model.second], model.head)
    lines = reuse.lines(
        model,
        trained,
        Ragged(torch.zeros(0, WIDTH), torch.zeros(0).long()),
        Batch(0, lambda *_: pytest.fail("an empty draw was read")),
    )
    steps = _steps(trained, torch.zeros(RECORDS, dtype=torch.long), often=2, noise=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = trained.vector()
    steps.take(0, lines, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
    assert not torch.equal(before, trained.vector())


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6, 1e18, math.inf, math.nan])
def test_no_record_moves_a_sum_by_more_than_the_clip(scale: float) -> None:
    """Law 2 for the rows of a line: the adversary's record beside ordinary ones, there and zeroed out."""
    phi, slopes = torch.randn(RECORDS, 500), torch.rand(RECORDS) - 0.5
    phi[7] = scale * torch.randn(500)
    slopes[7] = 1.0
    clip = qg.methods.dp_sgd(clip=CLIP).releases[0].clip
    without = phi.clone()
    without[7] = 0.0
    sums = [
        clip(
            BlockwiseGrads(
                {"line": FactoredGrad(rows[:, None, :], slopes[:, None, None], way="outer")}, RECORDS
            ),
            0,
        )
        for rows in (phi, without)
    ]
    moved = (sums[0].blocks["line"].double() - sums[1].blocks["line"].double()).norm()
    assert float(moved) <= CLIP


def test_the_ledger_holds_one_event_a_draw(table: Ragged, labels: Tensor) -> None:
    model = Model()
    trained = reuse.Trained([model.first, model.second], model.head)
    steps = _steps(trained, labels, often=5, noise=1.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    before = trained.vector()
    lines = reuse.lines(model, trained, table, _draw(labels))
    for step in range(3):
        steps.take(step, lines, optimizer, schedule)
    (phase,) = steps.ledger.phases
    assert phase.rate == RATE
    assert phase.count == 3
    assert phase.event == qg.accounting.GaussianEvent(noise_multiplier=1.5)
    assert not torch.equal(before, trained.vector())


RATE, CLIP = 0.5, 0.75


def _draw(labels: Tensor) -> Batch:
    rows = torch.arange(RECORDS)
    return Batch(RECORDS, lambda a, b: [rows[a:b], labels[a:b]])


def _steps(trained: reuse.Trained, labels: Tensor, *, often: int, noise: float) -> reuse.Steps:
    data = TensorDataset(torch.arange(RECORDS), labels)
    batches = qg.PoissonBatches(data, rate=RATE, steps=3)
    program = qg.Program(training=qg.methods.dp_sgd(clip=CLIP).with_noise(noise))
    return reuse.Steps(trained, program, batches, qg.Ledger(), often)
