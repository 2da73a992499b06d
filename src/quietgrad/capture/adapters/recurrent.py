"""RNN, LSTM and GRU: one backward through time; replayed one by one where a batch entry is no sample's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from quietgrad.capture.adapters.base import Pieces
from quietgrad.capture.adapters.fallback import FallbackAdapter, surroundings
from quietgrad.capture.adapters.packed import packed_pieces
from quietgrad.capture.adapters.stacked import Stacked, masks
from quietgrad.capture.adapters.through_time import ThroughTime, as_arrived, batch_layout
from quietgrad.capture.call import Call
from quietgrad.capture.layout import Layout, Placement


class RecurrentAdapter(FallbackAdapter):
    """Batched through time; else the fallback, given the zero state that the module would make itself (vmap cannot
    batch that one).

    Args:
        stock: whether the module computes what its kind computes.
    """

    def __init__(self, *, stock: bool) -> None:
        super().__init__()
        self._stock = stock

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return len(shape) - 1

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.RNNBase)
        given = dict(zip(("input", "hx"), call.args, strict=False), **call.kwargs)
        x = given["input"]
        if isinstance(x, PackedSequence):
            _refuse_packed_dropout(module, call.place)
            return packed_pieces(call, layouts, backprops)
        batch = batch_layout(call, x, layouts, len(backprops[0])) if self._stock else None
        if batch is not None:
            found = self._through_time(call, given, batch, layouts, backprops)
            if found is not None:
                return found
        if drops_out(module):
            unit = dataclasses.replace(call.unit, module=Stacked(module))
            call = dataclasses.replace(call, unit=unit)
        return super().pieces(call, layouts, backprops)

    def _through_time(
        self,
        call: Call,
        given: dict[str, Any],
        batch: Layout,
        layouts: list[Placement | None],
        backprops: list[Float[Tensor, "n ..."]],
    ) -> Pieces | None:
        """All samples at once; None where the outputs are not those that were recorded."""
        module, x = call.unit.module, given["input"]
        assert isinstance(module, nn.RNNBase)
        hx = initial_state(module, x) if given.get("hx") is None else given["hx"]
        run = ThroughTime(call, x, hx if isinstance(hx, tuple) else (hx,), self._masks(module, call, x))
        if not run.reproduced():
            return None
        arrived = {
            output.position: as_arrived(b, layout, output.shape)
            for output, layout, b in zip(call.outputs, layouts, backprops, strict=True)
            if isinstance(layout, Layout)
        }
        return run.pieces(arrived, batch, len(backprops[0]))

    def arguments(self, call: Call) -> tuple[Any, Any]:
        module = call.unit.module
        like = module._like[0] if isinstance(module, Stacked) else module
        assert isinstance(like, nn.RNNBase)
        given = dict(zip(("input", "hx"), call.args, strict=False), **call.kwargs)
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
