"""RNN, LSTM and GRU: replayed sample by sample, with their initial state written out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from quietgrad.capture.adapters.fallback import FallbackAdapter
from quietgrad.capture.call import Call


class RecurrentAdapter(FallbackAdapter):
    """The fallback, given the zero state that the module would make itself (vmap cannot batch that one)."""

    def arguments(self, call: Call) -> tuple[Any, Any]:
        module = call.unit.module
        assert isinstance(module, nn.RNNBase)
        _refuse_dropout(module, call.place)
        given = dict(zip(("input", "hx"), call.args, strict=False), **call.kwargs)
        if not isinstance(given["input"], Tensor):
            raise ValueError(
                f"Module {call.place!r} was given a packed sequence, which interleaves the samples. Pass padded "
                "sequences and mask the loss."
            )
        if given.get("hx") is None:
            given["hx"] = initial_state(module, given["input"])
        return (given["input"], given["hx"]), {}


def initial_state(module: nn.RNNBase, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """Zeros in the shape that the module wants for this input."""
    layers = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if x.dim() == 2 else (x.shape[0 if module.batch_first else 1],)
    hidden = x.new_zeros(layers, *batch, module.proj_size or module.hidden_size)
    if isinstance(module, nn.LSTM):
        return hidden, x.new_zeros(layers, *batch, module.hidden_size)
    return hidden


def _refuse_dropout(module: nn.RNNBase, place: str) -> None:
    if module.dropout > 0 and module.training and module.num_layers > 1:
        raise ValueError(
            f"Module {place!r} drops out between its layers in a way that cannot be replayed. Use dropout=0, or stack "
            "single-layer modules with nn.Dropout between them."
        )
