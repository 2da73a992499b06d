"""A whole recurrent module by one batched backward through time: layers, directions, projections, dropout between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from quietgrad.capture.adapters.base import Pieces
from quietgrad.capture.adapters.cells import Cell, GateGradients, Steps, Weights, cells
from quietgrad.capture.call import Call
from quietgrad.capture.layout import Layout, Placement
from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.factored import FactoredGrad

STOCK = (nn.RNN, nn.LSTM, nn.GRU)
TOLERANCE = 1e-4
"""How far a replay may be from what was recorded."""


def batch_layout(call: Call, x: Any, layouts: list[Placement | None], n: int) -> Layout | None:
    """How the batch holds the samples, if each of its entries is one sample's; None asks for the slow path."""
    module = call.unit.module
    assert isinstance(module, nn.RNNBase)
    if not isinstance(x, Tensor) or x.dim() != 3 or x.numel() == 0 or call.autocast[0]:
        return None
    if x.dtype not in (torch.float32, torch.float64):
        return None
    first = 0 if module.batch_first else 1
    entries = x.shape[first]
    if n == 1:
        return Layout(1, inner=entries)
    found = {
        layout.inner if isinstance(layout, Layout) and layout.dim == dim else 0
        for layout, dim in zip(layouts, (first if o.position == 0 else 1 for o in call.outputs), strict=True)
    }
    return Layout(1, inner=found.pop()) if len(found) == 1 and 0 not in found else None


def is_stock_recurrent(module: nn.RNNBase) -> bool:
    """Whether it computes what its kind computes, with parameters of its own."""
    same = any(type(module).forward is kind.forward for kind in STOCK)
    patched = "forward" in vars(module) or bool(module._forward_pre_hooks)
    own = all(isinstance(module._parameters.get(name), nn.Parameter) for name in module._flat_weights_names)
    return same and not patched and own and not parametrize.is_parametrized(module)


@dataclass(frozen=True)
class _Layer:
    """One layer that was run: its inputs `[t, n, i]` and a cell for each direction."""

    x: Steps
    cells: list[Cell]


class ThroughTime:
    """One recorded call, run again for the whole batch.

    Args:
        hx: the states it began with, `[layers·directions, n, h]` each.
        masks: between the layers, in the module's own layout.
    """

    def __init__(self, call: Call, x: Tensor, hx: tuple[Tensor, ...], masks: list[Tensor]) -> None:
        assert isinstance(call.unit.module, nn.RNNBase)
        self._call, self._module = call, call.unit.module
        self._directions = 2 if self._module.bidirectional else 1
        self._masks = [self._time_first(mask) for mask in masks]
        self._layers: list[_Layer] = []
        steps = self._time_first(x).contiguous()
        for layer in range(self._module.num_layers):
            steps = self._run(steps, hx, layer)
        self._output = steps

    def _run(self, x: Steps, hx: tuple[Tensor, ...], layer: int) -> Steps:
        run = []
        for direction in range(self._directions):
            start = tuple(state[layer * self._directions + direction] for state in hx)
            ordered = x.flip(0) if direction else x
            run.append(cells(self._module, ordered, start, self._weights(layer, direction)))
        self._layers.append(_Layer(x, run))
        out = torch.cat([cell.states[1:].flip(0) if d else cell.states[1:] for d, cell in enumerate(run)], 2)
        return out * self._masks[layer] if layer < len(self._masks) else out

    def reproduced(self) -> bool:
        """Whether the outputs are the recorded ones: the masks, the states and the weights are those of the call."""
        recorded = self._call.results
        ends = zip(*(cell.last for layer in self._layers for cell in layer.cells), strict=True)
        found = [self._time_first(self._output), *(torch.stack(list(parts)) for parts in ends)]
        return all(_close(mine, theirs) for mine, theirs in zip(found, recorded, strict=True))

    def pieces(self, backprops: dict[int, Tensor], layout: Layout, n: int) -> Pieces:
        """Per-sample gradients of the trained parameters.

        Args:
            backprops: of each output that got one, in the module's own layout.
        """
        outputs = backprops.get(0)
        arriving = (
            torch.zeros_like(self._output) if outputs is None else self._time_first(outputs).contiguous()
        )
        found: Pieces = {}
        for number in reversed(range(len(self._layers))):
            arriving = self._layer_pieces(number, arriving, backprops, layout, n, found)
        return {name: found[name] for name in self._call.unit.names}

    def _layer_pieces(
        self,
        number: int,
        arriving: Steps,
        backprops: dict[int, Tensor],
        layout: Layout,
        n: int,
        found: Pieces,
    ) -> Float[Tensor, "_ n _"]:
        """Adds the pieces of a layer to `found`; returns the gradient at the output of the layer below, if any: below
        the first there are no steps."""
        layer = self._layers[number]
        if number < len(self._masks):
            arriving = arriving * self._masks[number]
        below = torch.zeros_like(layer.x) if number else arriving[:0]
        parts = arriving.chunk(self._directions, 2)
        for direction, (cell, part) in enumerate(zip(layer.cells, parts, strict=True)):
            weights = self._weights(number, direction)
            ends = self._ends(cell, backprops, number * self._directions + direction)
            gates = cell.backward(part.flip(0) if direction else part.contiguous(), ends)
            x = layer.x.flip(0) if direction else layer.x
            suffix = self._suffix(number, direction)
            pieces = _pieces(x, cell, gates, lambda rows: _by_sample(rows, layout, n))
            found.update({kind + suffix: piece for kind, piece in pieces.items()})
            if number:
                through = gates.from_input @ weights.w_ih
                below += through.flip(0) if direction else through
        return below

    def _ends(self, cell: Cell, backprops: dict[int, Tensor], row: int) -> tuple[Tensor, ...]:
        """The gradients of the last states of one direction of one layer."""
        given = (backprops.get(1 + place) for place in range(len(cell.last)))
        pairs = zip(cell.last, given, strict=True)
        return tuple(torch.zeros_like(last) if full is None else full[row] for last, full in pairs)

    def _weights(self, layer: int, direction: int) -> Weights:
        suffix = self._suffix(layer, direction)
        named = {kind: self._module._parameters.get(kind + suffix) for kind in _KINDS}
        found = {kind: p.detach() for kind, p in named.items() if p is not None}
        none = found["weight_ih"].new_zeros(len(found["weight_ih"]))
        return Weights(
            w_ih=found["weight_ih"],
            w_hh=found["weight_hh"],
            b_ih=found.get("bias_ih", none),
            b_hh=found.get("bias_hh", none),
            w_hr=found.get("weight_hr"),
        )

    def _suffix(self, layer: int, direction: int) -> str:
        return f"_l{layer}" + ("_reverse" if direction else "")

    def _time_first(self, x: Tensor) -> Tensor:
        """From the module's layout to `[t, n, …]`, or back again."""
        return x.transpose(0, 1) if self._module.batch_first else x


_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def _pieces(x: Steps, cell: Cell, gates: GateGradients, by_sample: Any) -> dict[str, BlockGrads]:
    """Each kind of parameter's gradients, as factors where it is a matrix."""
    from_input = by_sample(gates.from_input)
    same = gates.from_state is gates.from_input
    from_state = from_input if same else by_sample(gates.from_state)
    bias = DenseGrad(from_input.sum(1))
    found: dict[str, BlockGrads] = {
        "weight_ih": FactoredGrad(by_sample(x), from_input),
        "weight_hh": FactoredGrad(by_sample(cell.states[:-1]), from_state),
        "bias_ih": bias,
        "bias_hh": bias if same else DenseGrad(from_state.sum(1)),
    }
    if gates.projected is not None and cell.unprojected is not None:
        found["weight_hr"] = FactoredGrad(by_sample(cell.unprojected), by_sample(gates.projected))
    return found


def _by_sample(rows: Steps, layout: Layout, n: int) -> Float[Tensor, "n m d"]:
    """All positions of a sample one after the other."""
    return layout.samples_first(rows, n).reshape(n, -1, rows.shape[2]).contiguous()


def as_arrived(b: Float[Tensor, "n ..."], layout: Layout, shape: torch.Size) -> Tensor:
    """An output's gradient in the output's own shape again: the inverse of `Layout.samples_first`."""
    outer = shape[layout.dim] // (len(b) * layout.inner)
    split = torch.unflatten(b, layout.dim + 1, (outer, layout.inner))
    return split.movedim(0, layout.dim + 1).reshape(shape)


def _close(mine: Tensor, theirs: Tensor) -> bool:
    """`allclose`; where no number is missing one pass over the difference mostly tells."""
    if mine.shape == theirs.shape and float((mine - theirs).abs().max()) <= TOLERANCE:
        return True
    return torch.allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
