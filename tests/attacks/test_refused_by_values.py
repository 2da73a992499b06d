"""Whether a run is refused must not depend on the values of one record, and no error may quote one.

A module that quietgrad does not know runs again sample by sample, and has to give the recorded outputs. One record with
huge values rounds or overflows otherwise than in the batch, so that refusing would tell that it is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.glue import TASKS
from quietgrad.lab.data.text_table import read_text_table
from quietgrad.lab.data.torch_dataset import from_datasets
from tests.attacks.harness import influence

N, WIDTH = 6, 64


class Remainder(nn.Module):
    """What rounding leaves of a product: nothing for usual records, and something of the order of large ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight, self.head = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        if (
            float(x.detach().abs().sum()) < 0
        ):  # not for vmap: each sample runs by itself, in kernels of another shape
            return x
        exact = (x.double() @ self.weight.detach().double()).float()
        return self.head((x @ self.weight - exact) + (x @ self.weight).tanh())[:, 0].square()


class Overflowing(nn.Module):
    """Infinite in one order of operations, and not a number in another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).exp().logsumexp(1)


@pytest.mark.parametrize("value", [1e3, 1e30, 3e38, math.inf, math.nan])
@pytest.mark.parametrize("build", [Remainder, Overflowing])
def test_no_record_makes_a_module_refused(build: Callable[[], nn.Module], value: float) -> None:
    x = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0))
    x[0] *= value
    for micro in (N, 1):
        outcome = influence(build, TensorDataset(x), list(range(N)), removed=[0], micro=micro)
        assert outcome.refusal is None
        assert outcome.holds(1e-5)


class Fourier(nn.Module):
    """Angles of random features: of a huge record, they are rounding alone, in every kernel another one."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.register_buffer("frequencies", torch.randn(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x @ self.frequencies).cos()).square().sum(1)


class Recurrent(nn.Module):
    """The same behind a recurrent layer without tanh."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rnn = nn.RNN(8, WIDTH, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(-1, 8, 8))[1][-1].cos()).square().sum(1)


@pytest.mark.parametrize("value", [1e4, 1e8, 1e12])
@pytest.mark.parametrize("build", [Fourier, Recurrent])
@pytest.mark.parametrize("n", [2, 3, N])
def test_no_record_makes_a_loop_refused(build: Callable[[], nn.Module], value: float, n: int) -> None:
    """Beside fewer others, in kernels of another shape, one record moved by itself: the run was refused."""
    x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))
    x[0] *= value
    outcome = influence(build, TensorDataset(x), list(range(n)), removed=[0])
    assert outcome.refusal is None
    assert outcome.holds(1e-5)


@pytest.mark.parametrize("n", [2, 3, 4, N])
def test_losses_divided_by_the_number_of_records_are_still_refused(n: int) -> None:
    def divided(model: nn.Module, x: Tensor) -> Tensor:
        losses: Tensor = model(x)
        return losses / len(losses)

    x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))
    outcome = influence(Fourier, TensorDataset(x), list(range(n)), divided, removed=[0])
    assert outcome.refusal is not None


class Rerun(nn.RNN):
    """A subclass, whose packed sequences are run again one by one; without tanh, nothing keeps its numbers small."""

    def forward(self, *given: Any) -> Any:
        return super().forward(*given)


class Packed(nn.Module):
    """A recurrent layer on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rnn = Rerun(WIDTH, 2 * WIDTH, num_layers=2, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1])
        _, hidden = self.rnn(pack_padded_sequence(x, lengths, batch_first=True))
        return self.head(hidden[-1])[:, 0].square()


@pytest.mark.parametrize("value", [1e10, math.nan])
def test_no_record_makes_packed_sequences_refused(value: float) -> None:
    """At 1e10 the record alone rounds otherwise than in the pack: the run was refused."""
    x = torch.randn(N, 30, WIDTH, generator=torch.Generator().manual_seed(0))
    x[0] *= value
    outcome = influence(Packed, TensorDataset(x), list(range(N)), removed=[0])
    assert outcome.refusal is None
    assert outcome.holds(1e-5)


@pytest.mark.filterwarnings("ignore:.*was not checked")
@pytest.mark.parametrize("value", [1.0, 1e3, 1e30, math.nan])
@pytest.mark.parametrize("build", [Remainder, Overflowing])
def test_no_record_makes_a_loop_over_a_data_loader_refused(
    build: Callable[[], nn.Module], value: float
) -> None:
    """A loop that cannot be asked was refused where one record, at 1e3, had other outputs alone."""
    x = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0))
    x[0] *= value
    model, sampler = build(), qg.PoissonSampler(N, rate=1.0, steps=4)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with qg.Privatizer(model, mechanism, sampler) as private:
        for (rows,) in DataLoader(TensorDataset(x), batch_sampler=sampler):
            private.backward(model(rows))
            private.release()


def test_what_mixes_is_still_refused() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return ((x - x.mean(0)) * self.weight).square().sum(1)

    x = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0))
    assert influence(Centred, TensorDataset(x), list(range(N)), removed=[0]).refusal is not None


@pytest.mark.parametrize("rows", [5, 9])
def test_explain_names_no_sample_and_no_size(rows: int) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softmax(0))
    x = torch.randn(rows, WIDTH)
    batches = qg.PoissonBatches(TensorDataset(x), rate=0.5, steps=1)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches) as private, pytest.raises(qg.PrivacyError) as caught:
        private.explain(x)
    assert not any(character.isdigit() for character in str(caught.value))


def test_readers_quote_no_label_and_no_shape(tmp_path: Path) -> None:
    task = next(task for task in TASKS if task.name == "mnli")
    rows = task.rows
    header = f"{rows.first}\t{rows.second}\t{rows.label}"  # type: ignore[attr-defined]  # rows of two texts
    with pytest.raises(DataError) as caught:
        rows(tmp_path / "train.tsv", [header, "a\tb\tmrs smith has it"], task.labels)
    assert "smith" not in str(caught.value)
    table = tmp_path / "texts.jsonl"
    table.write_text('{"text": "a", "label": 1}\n{"text": "b", "mrs smith has it": 1}\n')
    with pytest.raises(DataError, match="the first has text, label") as caught:
        read_text_table(table)
    assert "smith" not in str(caught.value)
    table.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": ' + "7" * 5000 + "}\n")
    with pytest.raises(DataError, match="line 2: not JSON"):
        read_text_table(table)
    first = (torch.zeros(3), 0)
    for label in ("mrs smith has it", 713 * 2**70):
        with pytest.raises(DataError, match="no whole numbers") as caught:
            from_datasets([first, (first[0], label)], [first], num_classes=2)
        assert "smith" not in str(caught.value)
        assert caught.value.__cause__ is None
    uneven = [(torch.zeros(3), 0), (torch.zeros(713), 1)]
    with pytest.raises(DataError) as caught:
        from_datasets(uneven, uneven, num_classes=2)
    assert "713" not in str(caught.value)


def test_no_text_stops_the_reader(tmp_path: Path) -> None:
    """Half a character and a long text ended in a traceback."""
    lines, rows = tmp_path / "texts.jsonl", tmp_path / "texts.csv"
    lines.write_text('{"text": "a \\ud800", "label": 1}\n{"text": "b", "label": 0}\n')
    rows.write_text(f"text,label\n{'a' * 200_000},1\nb,0\n")
    for path in (lines, rows):
        assert len(read_text_table(path).train) == 2


def test_a_client_without_records_stops_no_round() -> None:
    model = nn.Linear(2, 1)
    before = [parameter.clone() for parameter in model.parameters()]
    nothing = TensorDataset(torch.zeros(0, 2), torch.zeros(0))
    qg.federated.train_locally(model, nothing, lambda model, x, y: model(x)[:, 0] - y)
    assert all(map(torch.equal, before, model.parameters()))
