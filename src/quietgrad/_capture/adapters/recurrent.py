"""RNN, LSTM and GRU: taken apart while they run; subclasses, half precision and checkpointed ones are run again."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from quietgrad._capture.adapter import Pieces, Report
from quietgrad._capture.adapters.fallback import FallbackAdapter
from quietgrad._capture.adapters.over_time import RecurrentWatch
from quietgrad._capture.adapters.packed import packed_pieces
from quietgrad._capture.adapters.replay import surroundings
from quietgrad._capture.adapters.stacked import Stacked, masks
from quietgrad._capture.call import Call, Unit
from quietgrad._capture.layout import Placement


class RecurrentAdapter(FallbackAdapter):
    """A watch that takes the layers apart; else the fallback, given the zero state that the module would make itself
    (vmap cannot batch that one).

    Args:
        stock: whether the module computes what its kind computes.
    """

    watches_functions = True
    feature_dims = 1

    def __init__(self, *, stock: bool) -> None:
        super().__init__()
        self._stock = stock

    def watch(self, unit: Unit, report: Report) -> RecurrentWatch | None:
        return RecurrentWatch(unit, report) if self._stock else None

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.RNNBase)
        given = call.arguments("input", "hx")
        x = given["input"]
        if isinstance(x, PackedSequence):
            _refuse_packed_dropout(module, call.module_name)
            return packed_pieces(call, layouts, backprops)
        if drops_out(module):
            unit = dataclasses.replace(call.unit, module=Stacked(module))
            call = dataclasses.replace(call, unit=unit)
        return super().pieces(call, layouts, backprops)

    def arguments(self, call: Call) -> tuple[Any, Any]:
        module = call.unit.module
        like = module._like[0] if isinstance(module, Stacked) else module
        assert isinstance(like, nn.RNNBase)
        given = call.arguments("input", "hx")
        if given.get("hx") is None:
            given["hx"] = initial_state(like, given["input"])
        return (given["input"], given["hx"], *self._masks(like, call, given["input"])), {}

    def _masks(self, module: nn.RNNBase, call: Call, x: Tensor) -> list[Tensor]:
        if not drops_out(module):
            return []
        with surroundings(call):
            return masks(module, x)


def drops_out(module: nn.RNNBase) -> bool:
    return module.dropout > 0 and module.training and module.num_layers > 1


def initial_state(module: nn.RNNBase, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """Zeros in the shape that the module wants for this input."""
    layers = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if x.dim() == 2 else (x.shape[0 if module.batch_first else 1],)
    hidden = x.new_zeros(layers, *batch, module.proj_size or module.hidden_size)
    if isinstance(module, nn.LSTM):
        return hidden, x.new_zeros(layers, *batch, module.hidden_size)
    return hidden


def _refuse_packed_dropout(module: nn.RNNBase, place: str) -> None:
    if drops_out(module):
        raise ValueError(
            f"Module {place!r} drops out between its layers on packed sequences, in a way that cannot be replayed. "
            "Pass padded sequences and mask the loss, or use dropout=0."
        )
