"""A draw used for several steps: right gradients, and noise that costs what the ledger says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.fine_tuning import cores, reuse, sst2
from benchmarks.fine_tuning.activations import Ragged
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients import BlockwiseGrads, FactoredGrad
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._sampling.batch import Batch
from quietgrad.accounting.events import effective_multiplier

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
    draw = steps.releaser.record(steps.batches.charge(steps.program.event(0), 0), step=0)
    released = steps.release(draw, torch.zeros(1), torch.zeros(1, 2507)) * RATE * RECORDS / CLIP
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
        Batch([], lambda _: pytest.fail("an empty draw was read")),
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
                {"line": FactoredGrad(rows[:, None, :], slopes[:, None, None], algorithm="outer")}, RECORDS
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


def test_a_scale_changes_the_noise_alone_where_nothing_is_clipped(table: Ragged, labels: Tensor) -> None:
    gradients = []
    for scale in (None, torch.rand(2 * WIDTH**2 + WIDTH + 1) / 10 + 0.01):
        torch.manual_seed(0)
        model = Model()
        trained = reuse.Trained([model.first, model.second], model.head)
        steps = _steps(trained, labels, often=3, noise=1e-7, clip=100.0, scale=scale)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
        lines = reuse.lines(model, trained, table, _draw(labels))
        steps.take(0, lines, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))
        gradients.append(trained.vector())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)


def test_noise_of_a_coordinate_is_divided_by_its_scale() -> None:
    """No record, no rate: what is written into `grad` is noise alone."""
    linear, head = nn.Linear(50, 50, bias=False), nn.Linear(WIDTH, 2)
    trained = reuse.Trained([linear], head)
    scale = torch.ones(2507)
    scale[:1250] = 5.0
    steps = _steps(trained, torch.zeros(RECORDS).long(), often=4, noise=2.0, scale=scale)
    optimizer = torch.optim.SGD([linear.weight], lr=0.0)
    empty = reuse.Lines(torch.zeros(0), torch.zeros(0, 2507), torch.zeros(0))
    steps.take(0, empty, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
    assert linear.weight.grad is not None
    found = linear.weight.grad.flatten() * RATE * RECORDS / CLIP
    # 1,250 coordinates each: 15% is seven standard errors.
    assert float(found[:1250].square().mean().sqrt()) == pytest.approx(2.0 * 2 / 5, rel=0.15)
    assert float(found[1250:].square().mean().sqrt()) == pytest.approx(2.0 * 2, rel=0.15)


@pytest.mark.parametrize("record", [1e-3, 1.0, 1e6, 1e18, math.inf, math.nan])
def test_no_record_moves_a_scaled_release_by_more_than_the_clip(record: float) -> None:
    """Law 2 where the noise is: in the scaled coordinates, with a record that is long where the scale is large."""
    head = nn.Linear(WIDTH, 2)
    trained = reuse.Trained([nn.Linear(20, 20, bias=False)], head)
    scale = torch.logspace(-2, 2, 407)
    phi = torch.randn(RECORDS, 407)
    phi[7] = record * scale
    released = []
    for present in (True, False):
        steps = _steps(trained, torch.zeros(RECORDS).long(), often=1, noise=1e-6, scale=scale)
        rows = phi if present else torch.cat([phi[:7], phi[8:]])
        lines = reuse.Lines(torch.zeros(len(rows)), rows, torch.ones(len(rows)))
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.0)
        steps.take(0, lines, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
        assert head.weight.grad is not None
        assert head.bias.grad is not None
        grads = [trained.parameters()[0].grad, head.weight.grad[1], head.bias.grad[1:]]
        released.append(torch.cat([g.flatten() for g in grads if g is not None]) * scale * RATE * RECORDS)
    moved = float((released[0].double() - released[1].double()).norm())
    assert moved <= CLIP * (1 + 1e-4)  # the noise, and float32 of what was divided and multiplied again
    if record >= 1.0 and math.isfinite(record):
        assert moved > 0.99 * CLIP


@pytest.mark.parametrize(("epsilon", "often"), [(8.0, 1), (0.0, 16)])
def test_preconditioning_without_lines_is_refused(tmp_path: Path, epsilon: float, often: int) -> None:
    plan = sst2.Plan(lr=1e-3, steps=1, batch=1, top=6, seed=0, reuse=often, even=0.25)
    with pytest.raises(SystemExit, match="--reuse 16"):
        sst2.tune("core", epsilon, plan, tmp_path)


def test_more_directions_than_are_kept_are_refused() -> None:
    with pytest.raises(SystemExit, match="1 to 64"):
        cores.adapt(nn.ModuleList(), {}, 65)


RATE, CLIP = 0.5, 0.75


def _draw(labels: Tensor) -> Batch:
    rows = torch.arange(RECORDS)
    return Batch(range(RECORDS), lambda some: [rows[list(some)], labels[list(some)]])


def _steps(
    trained: reuse.Trained,
    labels: Tensor,
    *,
    often: int,
    noise: float,
    clip: float = CLIP,
    scale: Tensor | None = None,
) -> reuse.Steps:
    data = TensorDataset(torch.arange(RECORDS), labels)
    batches = qg.PoissonBatches(data, rate=RATE, steps=3)
    program = qg.Program(training=qg.methods.dp_sgd(clip=clip).with_noise(noise))
    scale = torch.ones(len(trained.vector())) if scale is None else scale
    return reuse.Steps(trained, program, batches, qg.Ledger(), often, scale)
