"""Attention as users have it: the linear maps inside `nn.MultiheadAttention`, caught while its forward runs.

Its forward hands its weights to `torch.nn.functional.linear` without calling a module. Each of these calls is seen with
its input and its output, which is all that a factored gradient needs; dropout and masks need no care, because nothing
is run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quietgrad._capture.adapter import Adapter, Pieces, Report, Watch
from quietgrad._capture.adapters.linear import inputs_of, outputs_of
from quietgrad._capture.call import Call, Unit
from quietgrad._capture.layout import Placement
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.factored import FactoredGrad


@dataclass(frozen=True)
class RowRange:
    """Part of a parameter: rows `start` to `start + count`."""

    name: str
    start: int
    count: int
    total: int

    def widen(self, x: Float[Tensor, "... o"]) -> Float[Tensor, "... total"]:
        """Zeros for the rows that this use does not touch."""
        if self.count == self.total:
            return x
        return F.pad(x, (self.start, self.total - self.start - self.count))


class ProjectionAdapter(Adapter):
    """Handle one use of (rows of) a weight and a bias in `linear`."""

    feature_dims = 1

    def __init__(self, weight: RowRange | None, bias: RowRange | None) -> None:
        self.weight, self.bias = weight, bias

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        b = outputs_of(backprops[0])
        pieces: Pieces = {}
        if self.weight is not None:
            a = inputs_of(call.args[0], layouts[0], b)
            pieces[self.weight.name] = FactoredGrad(a, self.weight.widen(b))
        if self.bias is not None:
            pieces[self.bias.name] = DenseGrad(self.bias.widen(b.sum(1)))
        return pieces


class AttentionAdapter(Adapter):
    """Marks a module whose linear maps are recorded one by one; it has no gradients of its own."""

    watches_functions = True

    def watch(self, unit: Unit, report: Report) -> LinearWatch:
        return LinearWatch(unit, report)

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        raise AssertionError("the linear maps inside are recorded, not the module")


class LinearWatch(Watch):
    """While entered, reports every `F.linear` of an attention that uses the unit's parameters.

    A function mode, which belongs to one thread, catches `multi_head_attention_forward` but cannot look inside it: it
    is answered with a copy of the function whose name `linear` means `_watch_linear`. Nothing that others see is
    rebound.

    Args:
        report: called with a unit for this one use, its input and its output.
    """

    def __init__(self, unit: Unit, report: Report) -> None:
        super().__init__()
        self._unit, self._report, self._uses = unit, report, 0
        named = dict(unit.module.named_parameters(remove_duplicate=False))
        self._parameters = {name: named[name] for name in unit.names}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.multi_head_attention_forward:
            func = _seeing(self._watch_linear)
        return func(*args, **(kwargs or {}))

    def _watch_linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        result = F.linear(input, weight, bias)
        rows, shift = self._rows(weight), self._rows(bias)
        if rows is not None or shift is not None:
            self._report(self._one_use(rows, shift), input, result)
        return result

    def _rows(self, used: Tensor | None) -> RowRange | None:
        """Which rows of which trained parameter a tensor is."""
        if used is None:
            return None
        for name, parameter in self._parameters.items():
            if used is parameter or used._base is parameter:
                width = parameter[0].numel()
                # The input projection is one parameter [3·d, d], and `chunk` hands out its thirds as views. Where a
                # view begins in memory says which rows it is.
                start = (used.storage_offset() - parameter.storage_offset()) // width
                return RowRange(name, start, len(used), len(parameter))
        return None

    def _one_use(self, weight: RowRange | None, bias: RowRange | None) -> Unit:
        self._uses += 1
        names = {rows.name: self._unit.names[rows.name] for rows in (weight, bias) if rows is not None}
        name = f"{self._unit.name}#{self._uses}"
        return Unit(name, self._unit.module, ProjectionAdapter(weight, bias), names)


def _seeing(linear: Callable[..., Tensor]) -> Callable[..., Any]:
    """`multi_head_attention_forward` with another `linear`; so do the functions that project for it."""
    # A function finds the names that it uses in its globals. A copy with other globals calls another `linear`, while
    # `torch.nn.functional` itself stays as it is for everybody else.
    names: dict[str, Any] = {**vars(F), "linear": linear}
    for name in ("_in_projection", "_in_projection_packed", "multi_head_attention_forward"):
        original = getattr(F, name)
        copy = FunctionType(original.__code__, names, name, original.__defaults__)
        names[name] = copy
    forward: Callable[..., Any] = names["multi_head_attention_forward"]
    return forward
