"""Recurrent layers by one batched backward through time: factors, equal to the loop for every option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietgrad.capture.adapters.recurrent import RecurrentAdapter
from quietgrad.capture.recorder import Recorder
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.stages import BlockwiseGrads
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


def check(model: nn.Module, x: Tensor, *, factored: bool = True) -> None:
    expected, grads = looped(model, (x,), losses, N), captured(model, x)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
        if "weight" in name:
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


def test_a_run_that_does_not_reproduce_the_outputs_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks that are not the recorded ones: the sample-by-sample replay is asked, which refuses them too."""
    model = Apply(everything, r=nn.GRU(3, 4, num_layers=2, dropout=0.5)).double()
    width = torch.zeros(5, N, 4, dtype=torch.float64)
    monkeypatch.setattr(RecurrentAdapter, "_masks", lambda *_: [width])
    with pytest.raises(ValueError, match="does not give the same output"):
        captured(model, data(model))


def test_a_record_that_is_not_a_number_leaves_the_others_alone() -> None:
    model = Apply(lambda m, x: m.r(x)[0].transpose(0, 1), r=nn.LSTM(3, 4)).double()
    x = data(model).clone()
    expected = looped(model, (x,), losses, N)
    x[:, 1] = float("nan")
    for name, rows in captured(model, x).dense().items():
        torch.testing.assert_close(rows[[0, 2, 3]], expected[name][[0, 2, 3]])
        assert rows[1].isnan().any()
