"""Recurrent layers taken apart while they run: factors, equal to the loop for every option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads
from tests.cases.layers import Apply
from tests.reference import looped

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.GRU, {}),
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 2}),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 3, "dropout": 0.5},
]
N = 4

Use = Callable[[nn.Module, Tensor], Tensor]


def everything(model: Any, x: Tensor) -> Tensor:
    """Outputs and last states all reach the loss."""
    torch.manual_seed(5)
    out, ends = model.r(x)
    ends = ends if isinstance(ends, tuple) else (ends,)
    rows = out if model.r.batch_first else out.transpose(0, 1)
    return torch.cat([rows.flatten(1), *(2 * end.transpose(0, 1).flatten(1) for end in ends)], 1)


def captured(model: nn.Module, x: Tensor) -> BlockwiseGrads:
    recorder = Recorder(model, deterministic=True)
    recorder.attach()
    try:
        return recorder.collect(losses(model, (x,)))
    finally:
        recorder.detach()


def losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return model(*inputs).square().flatten(1).sum(1)


def data(model: Any, *, entries: int = N) -> Tensor:
    x = torch.randn(entries, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x if model.r.batch_first else x.transpose(0, 1)


def check(
    model: nn.Module, x: Tensor, *, factored: bool = True, but: tuple[str, ...] = (), n: int = N
) -> None:
    expected, grads = looped(model, (x,), losses, n), captured(model, x)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
        if "weight" in name and not name.startswith(but):
            assert isinstance(grads.blocks[name], FactoredGrad) == factored, (
                "which of the two paths was taken"
            )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("kind", "more"), KINDS, ids=str)
def test_outputs_and_last_states_of_every_option(
    kind: Any, more: dict[str, Any], options: dict[str, Any]
) -> None:
    model = Apply(everything, r=kind(3, 4, **more, **options)).double()
    check(model, data(model))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_states_that_are_given(kind: Any) -> None:
    state = torch.randn(1, N, 4, dtype=torch.float64)
    hx = (state, state.flip(1)) if kind is nn.LSTM else state
    model = Apply(lambda m, x: m.r(x, hx)[0].transpose(0, 1), r=kind(3, 4)).double()
    check(model, data(model))


def test_several_sequences_of_a_sample() -> None:
    model = Apply(lambda m, x: m.r(x)[0].reshape(N, -1), r=nn.GRU(3, 4, batch_first=True)).double()
    check(model, data(model, entries=3 * N))


def test_a_module_called_twice_and_frozen_weights() -> None:
    layer = nn.LSTM(3, 3)
    layer.weight_hh_l0.requires_grad_(False)
    model = Apply(lambda m, x: m.r(m.r(x)[0])[0].transpose(0, 1), r=layer).double()
    check(model, data(model))


class Doubled(nn.LSTM):
    """Not what an LSTM computes."""

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002  torch's own name
        out, ends = super().forward(input, hx)
        return 2 * out, ends


def test_what_is_no_stock_layer_is_replayed() -> None:
    model = Apply(lambda m, x: m.r(x)[0].transpose(0, 1), r=Doubled(3, 4)).double()
    check(model, data(model), factored=False)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_checkpointed_layers_are_replayed(kind: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(lambda y: m.r(y)[0], m.before(x), use_reentrant=False)
        return out.transpose(0, 1)

    model = Apply(forward, before=nn.Linear(3, 3), r=kind(3, 4)).double()
    check(model, data(model), factored=False, but=("before",))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_learned_first_states_and_what_comes_before(kind: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        start = m.start(x[0]).unsqueeze(0)
        out: Tensor = m.r(m.before(x), (start, start.tanh()) if kind is nn.LSTM else start)[0]
        return out.transpose(0, 1)

    model = Apply(forward, before=nn.Linear(3, 3), start=nn.Linear(3, 4), r=kind(3, 4)).double()
    check(model, data(model), but=("before", "start"))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_strided_inputs_and_gradients_of_few_samples(kind: Any, n: int) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.r(x.transpose(1, 2))[0].transpose(1, 2)[:, ::2].expand(3, n, 2, 5).transpose(0, 1)

    model = Apply(forward, r=kind(3, 4, batch_first=True)).double()
    x = torch.randn(n, 3, 5, dtype=torch.float64)
    check(model, x, n=n)


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=str)
def test_outputs_may_be_changed_in_place(kind: Any, more: dict[str, Any]) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        out, ends = m.r(x)
        out *= 2.0
        (ends[0] if isinstance(ends, tuple) else ends).add_(1.0)
        rows: Tensor = out.transpose(0, 1)
        return rows

    model = Apply(forward, r=kind(3, 4, num_layers=2, **more)).double()
    check(model, data(model))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("kind", "more"), KINDS, ids=str)
def test_an_ordinary_backward_through_the_parts_gives_what_torch_gives(
    kind: Any, more: dict[str, Any], options: dict[str, Any]
) -> None:
    """Also on packed sequences, with dropout between the layers: one sample's loss, the very same graph."""

    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        first = m.r.batch_first
        rows = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        out, ends = m.r(rows)
        padded, _ = pad_packed_sequence(out, batch_first=first)
        ends = ends if isinstance(ends, tuple) else (ends,)
        states = torch.cat([end.transpose(0, 1).flatten(1) for end in ends], 1)
        return torch.cat([(padded if first else padded.transpose(0, 1)).flatten(1), states], 1)

    model = Apply(forward, r=kind(3, 4, **more, **options)).double()
    inputs = (data(model), torch.tensor([2, 5, 1, 3]))
    dropping = "dropout" in options
    expected = None if dropping else looped(model, inputs, losses, N)
    recorder = Recorder(model, deterministic=True)
    recorder.attach()
    found = losses(model, inputs)
    parameters = dict(model.named_parameters())
    raw = [torch.autograd.grad(found[i], list(parameters.values()), retain_graph=True) for i in range(N)]
    grads = recorder.collect(found)
    recorder.detach()
    for place, name in enumerate(parameters):
        rows = torch.stack([each[place] for each in raw])
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
        if expected is not None:
            torch.testing.assert_close(rows, expected[name])


def test_a_record_that_is_not_a_number_leaves_the_others_alone() -> None:
    model = Apply(lambda m, x: m.r(x)[0].transpose(0, 1), r=nn.LSTM(3, 4)).double()
    x = data(model).clone()
    expected = looped(model, (x,), losses, N)
    x[:, 1] = float("nan")
    for name, rows in captured(model, x).dense().items():
        torch.testing.assert_close(rows[[0, 2, 3]], expected[name][[0, 2, 3]])
        assert rows[1].isnan().any()
