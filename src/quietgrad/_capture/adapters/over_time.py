"""Recurrent layers taken apart while they run, so that autograd itself brings the gradients of their gates.

    gates = x W_ihᵀ + b + uses,      outputs = cells(gates, start; W_hh)

A weight of a recurrent layer is used at every step, so its gradient is Σ_t d_t a_tᵀ: d_t is the gradient at the gates
of step t, and a_t what the weight was multiplied with. torch's own layers are one node each, and their d_t never appear
in the graph. So a stock module's call of `torch.lstm` and the like is answered by the same computation in two parts,
between which the gates are visible.

To the gates are added zeros, `uses`, which stand for the layer's weights. The gradient at these zeros is exactly d_t.
They are reported as the output of a call, as if a linear layer had made them. From there everything is as for other
layers: d_t is attributed to samples by the backward, and `WeightUseAdapter` makes factors (a_t, d_t) of it.

Checked by: tests/capture/test_over_time.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize

from quietgrad._capture.adapter import Adapter, Pieces, Report, Watch, inputs_for
from quietgrad._capture.adapters.cells import Arranged, CellWeights, RecurrentCell, Steps, cells
from quietgrad._capture.call import Call, Unit
from quietgrad._capture.layout import BatchAxis, BatchLayout, Layout, Placement
from quietgrad._capture.node_rules.lookup import register_rule
from quietgrad._capture.node_rules.visit import Visit, unknown
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.factored import FactoredGrad

STOCK = (nn.RNN, nn.LSTM, nn.GRU)
FUNCTIONS = tuple(getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def is_stock_recurrent(module: nn.RNNBase) -> bool:
    """Whether it computes what its kind computes, with parameters of its own."""
    same = any(type(module).forward is kind.forward for kind in STOCK)
    patched = "forward" in vars(module) or bool(module._forward_pre_hooks)
    own = all(isinstance(module._parameters.get(name), nn.Parameter) for name in module._flat_weights_names)
    return same and not patched and own and not parametrize.is_parametrized(module)


# ---- one direction of one layer -----------------------------------------------------------------------------


@dataclass
class DirectionRun:
    """What a direction of a layer was given, and what it did; filled while it runs."""

    x: Steps
    cell: RecurrentCell | None = None

    def factors(
        self, kinds: Iterable[str], d: Tensor, arranged: Arranged
    ) -> dict[str, tuple[Tensor | None, Tensor]]:
        """(a, b) of each kind of weight: its gradient is Σ b aᵀ, a bias's Σ b.

        Args:
            d: the gradient of their use, and `arranged` brings whatever else is needed into the same order.
        """
        assert self.cell is not None
        given = {"weight_ih": self.x, "weight_hh": self.cell.states[:-1], "weight_hr": self.cell.unprojected}
        of_state = self.cell.at_state(d, arranged) if any(kind.endswith("_hh") for kind in kinds) else d
        found = {}
        for kind in kinds:
            a = given.get(kind)
            found[kind] = None if a is None else arranged(a), of_state if kind.endswith("_hh") else d
        return found


class WeightUse(Function):
    """Zeros in the place where the gradients of some weights arrive; differentiated, it gives theirs."""

    @staticmethod
    def forward(
        ctx: Any, run: DirectionRun, kinds: tuple[str, ...], shape: torch.Size, *weights: Tensor
    ) -> Tensor:
        ctx.run, ctx.kinds = run, kinds
        # A single zero, stretched: it costs no memory, and its gradient still has the full shape.
        return weights[0].new_zeros(()).expand(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        """Never asked for by a private step, which takes the gradient that arrives here."""
        pairs = ctx.run.factors(ctx.kinds, d, lambda x: x).values()
        found = [
            b.flatten(0, 1).sum(0) if a is None else b.flatten(0, 1).T @ a.flatten(0, 1) for a, b in pairs
        ]
        return None, None, None, *found


class OverTime(Function):
    """A cell over time, of its gates, the uses of its weights and of its projection (zeros), and its first states."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., RecurrentCell], gates: Steps, *more: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.cell = run(gates, more[2:])
        return (ctx.cell.states[1:], *(end.clone() for end in ctx.cell.memory))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs: Steps, *memory: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.cell.backward(outputs, memory)
        for_uses, for_projected = ctx.needs_input_grad[2:4]
        return (
            None,
            found.gates,
            found.gates if for_uses else None,
            found.projected if for_projected else None,
            *found.start,
        )


@register_rule(OverTime)
def cells_apart(visit: Visit) -> list[BatchLayout]:
    """Entries of the batch stay apart: they are the second dimension, of a state the first."""
    if visit.dim != len(visit.shape) - 2:
        return unknown(visit)
    return [
        BatchAxis.UNKNOWN if shape is None else Layout(len(shape) - 2, visit.layout.inner)
        for shape in visit.input_shapes
    ]


@register_rule(WeightUse)
def weights_are_shared(visit: Visit) -> list[BatchLayout]:
    return visit.all_inputs(BatchAxis.ABSENT)


class WeightUseAdapter(Adapter):
    """Compute the gradients of the weights that one use stands for."""

    feature_dims = 1

    def __init__(self, run: DirectionRun) -> None:
        self._run = run

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        n = len(backprops[0])

        def positions(rows: Float[Tensor, "n ..."]) -> Float[Tensor, "n m d"]:
            return rows.reshape(n, -1, rows.shape[-1]).contiguous()

        factors = self._run.factors(
            {kind_of(name): name for name in call.unit.names},
            positions(backprops[0]),
            lambda x: positions(inputs_for(x, layouts[0], backprops[0])),
        )
        shifts: dict[int, DenseGrad] = {}  # an LSTM's two biases have one gradient
        found: Pieces = {}
        for name in call.unit.names:
            a, b = factors[kind_of(name)]
            if a is None and id(b) not in shifts:
                shifts[id(b)] = DenseGrad(b.sum(1))
            found[name] = shifts[id(b)] if a is None else FactoredGrad(a, b)
        return found


def kind_of(name: str) -> str:
    return name.split("_l")[0]


# ---- a whole module -----------------------------------------------------------------------------------------


class RecurrentWatch(Watch):
    """While entered, answers the module's recurrent function by its parts, and reports the uses of its weights.

    Args:
        report: called with a unit for the weights of one use, what they were multiplied with, and the use.
    """

    def __init__(self, unit: Unit, report: Report) -> None:
        super().__init__()
        assert isinstance(unit.module, nn.RNNBase)
        self._unit, self._module, self._report = unit, unit.module, report
        self._count = 0
        self.complete = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not any(func is known for known in FUNCTIONS) or not self._known(args):
            return func(*args, **(kwargs or {}))
        self.complete = True
        # torch's recurrent functions have two signatures: (input, hx, weights, …) and (data, batch_sizes, hx,
        # weights, …).
        x, hx = args[0], args[2] if self._is_packed(args) else args[1]
        start = hx if isinstance(hx, tuple) else (hx,)
        return self._run_ragged(x, args[1], start) if self._is_packed(args) else self._regular(x, start)

    def _known(self, args: tuple[Any, ...]) -> bool:
        """Whether it is the module's own call, in a setting that this file covers."""
        x = args[0]
        weights = args[3 if self._is_packed(args) else 2]
        mine = (self._module._parameters.get(name) for name in self._module._flat_weights_names)
        own = all(used is parameter for used, parameter in zip(weights, mine, strict=True))
        plain = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)
        # Checkpointing runs the layer again, unseen, and counts what it saves; vmap does not know it.
        seen = _top_saved_tensors_default_hooks(True) is None and not is_functorch_wrapped_tensor(x)
        return own and plain and seen and x.numel() > 0

    def _is_packed(self, args: tuple[Any, ...]) -> bool:
        return not isinstance(args[3], bool)

    def _regular(self, x: Tensor, start: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """All sequences of one length."""
        first = self._module.batch_first
        x = x.transpose(0, 1) if first else x
        out, ends = self._layers(x, start, EqualLengths(*x.shape[:2]))
        return (out.transpose(0, 1) if first else out).clone(), *ends

    def _run_ragged(
        self, rows: Float[Tensor, "r i"], sizes: Tensor, start: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """A packed sequence: the first `sizes[t]` sequences have a step t."""
        order = PackedLengths(sizes)
        out, ends = self._layers(order.unpack(rows), start, order)
        return order.pack(out), *ends

    def _layers(self, x: Steps, start: tuple[Tensor, ...], order: Order) -> tuple[Steps, list[Tensor]]:
        module = self._module
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(module.num_layers):
            parts = []
            for direction in range(2 if module.bidirectional else 1):
                row = len(ends)
                ordered = order.reversed(x) if direction else x
                out, *memory = self._direction(
                    ordered, tuple(s[row] for s in start), layer, direction, order.sizes
                )
                ends.append((out[-1], *memory))
                parts.append(order.reversed(out) if direction else out)
            x = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
            if module.dropout > 0 and layer < module.num_layers - 1:
                x = F.dropout(x, module.dropout, module.training)
        return x, [torch.stack(states) for states in zip(*ends, strict=True)]

    def _direction(
        self, x: Steps, start: tuple[Tensor, ...], layer: int, direction: int, sizes: list[int]
    ) -> tuple[Tensor, ...]:
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        named = {kind: self._module._parameters.get(kind + suffix) for kind in KINDS}
        w = {kind: p.detach() for kind, p in named.items() if p is not None}
        weights = CellWeights(w_hh=w["weight_hh"], b_hh=w.get("bias_hh"), w_hr=w.get("weight_hr"))
        bias = w.get("bias_ih")
        if bias is not None and self._module.mode != "GRU":  # a GRU's other bias is inside its reset
            bias = bias + w["bias_hh"]
        gates = F.linear(x, w["weight_ih"], bias)
        run = DirectionRun(x.detach())
        uses = self._use(run, suffix, KINDS[:4], gates.shape)
        projected = None
        if weights.w_hr is not None:
            shape = torch.Size((*x.shape[:2], len(weights.w_hr)))
            projected = self._use(run, suffix, KINDS[4:], shape)

        def cell(gates: Steps, start: tuple[Tensor, ...]) -> RecurrentCell:
            run.cell = cells(self._module, gates, start, weights, sizes)
            return run.cell

        found: tuple[Tensor, ...] = OverTime.apply(cell, gates, uses, projected, *start)
        return found

    def _use(
        self, run: DirectionRun, suffix: str, kinds: tuple[str, ...], shape: torch.Size
    ) -> Tensor | None:
        trained = tuple(kind for kind in kinds if kind + suffix in self._unit.names)
        if not trained or not torch.is_grad_enabled():
            return None
        weights = [self._module._parameters[kind + suffix] for kind in trained]
        use: Tensor = WeightUse.apply(run, trained, shape, *weights)
        self._count += 1
        names = {kind + suffix: self._unit.names[kind + suffix] for kind in trained}
        unit = Unit(f"{self._unit.name}#{self._count}", self._module, WeightUseAdapter(run), names)
        self._report(unit, run.x, use)
        return use


# ---- sequences of one length, and of several ----------------------------------------------------------------


class EqualLengths:
    """Every sequence takes every step."""

    def __init__(self, steps: int, entries: int) -> None:
        self.sizes = [entries] * steps

    def reversed(self, x: Steps) -> Steps:
        return x.flip(0)


class PackedLengths:
    """The longest sequences first, `[t, n, …]` filled up with zeros."""

    def __init__(self, sizes: Tensor) -> None:
        self.sizes = [int(size) for size in sizes]
        steps, entries = len(self.sizes), self.sizes[0]
        taken = torch.arange(entries) < sizes[:, None]
        self._step, self._entry = taken.nonzero().T
        # Step s of the reversed sequence j is step length_j − 1 − s of the original. Steps behind the end map to
        # themselves, so that reversing twice gives the sequence back.
        lengths = taken.sum(0)
        back = (lengths - 1 - torch.arange(steps)[:, None]).clamp_min(0)
        self._back = torch.where(taken, back, torch.arange(steps)[:, None])
        self._entries = torch.arange(entries).expand(steps, entries)

    def unpack(self, rows: Float[Tensor, "r i"]) -> Steps:
        full = rows.new_zeros(len(self.sizes), self.sizes[0], rows.shape[1])
        return full.index_put((self._step, self._entry), rows)

    def pack(self, x: Steps) -> Float[Tensor, "r h"]:
        return x[self._step, self._entry]

    def reversed(self, x: Steps) -> Steps:
        """Each sequence from its own end."""
        return x[self._back, self._entries]


Order = EqualLengths | PackedLengths
