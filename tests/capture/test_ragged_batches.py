"""Batches in which records have different numbers of rows: nested tensors, packed sequences, sets, rows by an index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._mechanism.clipping import MARGIN

LENGTHS = [3, 1, 5, 2, 4, 0, 3]


def records(seed: int = 0, lengths: list[int] = LENGTHS) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(length, 4, generator=rng, dtype=torch.float64) for length in lengths]


def nested(rows: list[Tensor]) -> Tensor:
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(1, *(len(row) for row in rows)) if len(rows) > 1 else max(1, len(rows[0]))
    x, mask = rows[0].new_zeros(len(rows), longest, 4), rows[0].new_zeros(len(rows), longest, 1)
    for number, row in enumerate(rows):
        x[number, : len(row)], mask[number, : len(row)] = row, 1
    return x, mask


def joined(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat(rows), torch.tensor([len(row) for row in rows])


def added(rows: Tensor, lengths: Tensor) -> Tensor:
    """Sums over each record's rows."""
    owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, owners, rows)


def two_layers(norm: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8) if norm else nn.Tanh(), nn.Linear(8, 3))


def of_nested(model: nn.Module, x: Any) -> Tensor:
    return added(model(x).values(), x.offsets().diff()).square().sum(1)


def of_nested_padded(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).to_padded_tensor(0.0).square().sum((1, 2))


def of_packed(model: nn.Module, x: list[Tensor]) -> Tensor:
    out, _ = model(nn.utils.rnn.pack_sequence(list(x), enforce_sorted=False))
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].square().sum((1, 2))


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    losses: Callable[[nn.Module, Any], Tensor]
    collate: Callable[[list[Tensor]], Any]
    lengths: list[int] = LENGTHS


CASES = {
    "nested": Case(two_layers, of_nested, nested),
    "nested, LayerNorm": Case(lambda: two_layers(norm=True), of_nested, nested),
    "nested, as many rows as records": Case(two_layers, of_nested, nested, [2, 1, 0, 1]),
    "nested, equal lengths": Case(two_layers, of_nested, nested, [3, 3, 3, 3]),
    "nested, then padded": Case(two_layers, of_nested_padded, nested),
    "packed": Case(lambda: nn.LSTM(4, 3), of_packed, tuple, [3, 1, 5, 2, 4]),
    "padded sets": Case(
        two_layers, lambda model, x: (model(x[0]) * x[1]).sum(1).square().sum(1), padded, LENGTHS
    ),
    "rows by an index": Case(
        two_layers, lambda model, x: added(model(x[0]), x[1]).square().sum(1), joined, LENGTHS
    ),
}


def released(case: Case, model: nn.Module, rows: list[Tensor], clip: float) -> Tensor:
    draws = qg.PoissonBatches.replay(
        rows,
        [range(len(rows))],
        rate=1.0,
        collate_fn=case.collate,
        pad_to="longest",
    )
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=clip).with_noise(0.0), draws) as private:
        for batch in draws:
            for x in batch.split(4):
                private.backward(case.losses(model, x))
            private.release()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) * len(rows)


@pytest.mark.parametrize("name", CASES)
def test_a_release_is_the_clipped_sum_of_single_records(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    model, rows = case.model().double(), records(lengths=case.lengths)
    alone = []
    for row in rows:
        loss = case.losses(model, case.collate([row])).sum()
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
        alone.append(torch.cat([gradient.flatten() for gradient in found]))
    expected = torch.stack(alone)
    norms = expected.norm(dim=1)
    for clip in (1e6, float(norms[norms > 0].min()) / 2):
        scales = (clip * (1 - MARGIN) / norms.clamp_min(1e-300)).clamp_max(1.0)
        torch.testing.assert_close(
            released(case, model, rows, clip), scales @ expected, rtol=1e-8, atol=1e-12
        )


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12, float("nan")])
@pytest.mark.parametrize("name", ["nested", "nested, then padded", "padded sets", "rows by an index"])
def test_taking_a_record_away_moves_the_sum_by_no_more_than_the_clip(name: str, scale: float) -> None:
    """Law 2 for ragged layouts, in float32."""
    torch.manual_seed(0)
    case, model = CASES[name], two_layers().float()
    rows = [row.float() for row in records()]
    for number in (0, 2):
        odd = [row * scale if place == number else row for place, row in enumerate(rows)]
        rest = odd[:number] + odd[number + 1 :]
        moved = released(case, model, odd, 0.1).double() - released(case, model, rest, 0.1).double()
        assert float(moved.norm()) <= 0.1


def test_a_mean_over_all_rows_of_a_nested_tensor_is_refused() -> None:
    def centred(model: nn.Module, x: Any) -> Tensor:
        rows = model(x).values()
        return added(rows - rows.mean(0), x.offsets().diff()).square().sum(1)

    case = Case(two_layers, centred, nested)
    with pytest.raises(qg.PrivacyError):
        released(case, two_layers().double(), records(), 1.0)


def test_a_nested_tensor_whose_rows_have_no_order_is_refused_and_the_remedy_works() -> None:
    def strided(rows: list[Tensor]) -> Tensor:
        return torch.nested.nested_tensor(rows)

    def of_strided(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).to_padded_tensor(0.0).square().sum((1, 2))

    model, rows = nn.Linear(4, 3).double(), records(lengths=[3, 1, 2])
    with pytest.raises(qg.PrivacyError, match=r"layout=torch\.jagged"):
        released(Case(two_layers, of_strided, strided), model, rows, 1.0)
    assert released(Case(two_layers, of_nested_padded, nested), model, rows, 1.0).any()


class Scaled(nn.Module):
    """A parameter of its own beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def test_a_module_with_parameters_of_its_own_on_nested_tensors_is_refused_and_the_remedy_works() -> None:
    rows = records(lengths=[3, 1, 2])
    with pytest.raises(qg.PrivacyError, match="to_padded_tensor"):
        released(Case(Scaled, of_nested_padded, nested), Scaled().double(), rows, 1.0)

    def remedied(model: nn.Module, x: Tensor) -> Tensor:
        mask = nested([torch.ones_like(row) for row in x.unbind()]).to_padded_tensor(0.0)[..., :1]
        return (model(x.to_padded_tensor(0.0)) * mask).square().sum((1, 2))

    assert released(Case(Scaled, remedied, nested), Scaled().double(), rows, 1.0).any()
