"""Adapters: what makes the per-sample gradients of one kind of module, given one of its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from quietgrad._capture.call import Call, Unit
from quietgrad._capture.finite import zeroed
from quietgrad._capture.layout import Placement
from quietgrad._capture.ragged import nested_replay
from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.row_arithmetic import zero_rows

Pieces = dict[str, BlockGrads]
"""Local parameter name → its per-sample gradients from one call."""
Report = Callable[["Unit", Tensor, Tensor], None]
"""Takes a unit for one use of some parameters, what they were given, and what came of it."""


class Watch(TorchFunctionMode):
    """Sees the torch functions that a module's forward calls."""

    complete: bool = True
    """Whether every use of the module's parameters was reported; otherwise the module is recorded as a whole."""


class Adapter(ABC):
    """Compute the per-sample gradients of one kind of module.

    Every module has an adapter object of its own.

    Example:
        class ScaleAdapter(qg.Adapter):  # y = γ ⊙ x
            parameters = ("gamma",)

            def pieces(self, call, layouts, backprops):
                return {"gamma": qg.DenseGrad(call.args[0] * backprops[0])}
    """

    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")
    """Names of the module's own parameters that `pieces` has gradients for; a module need not have all of them."""

    feature_dims: ClassVar[int] = 0
    """How many trailing dimensions of an output hold features, and so never the samples."""

    replays: ClassVar[bool] = False
    """Whether it runs the module again (and so keeps the results to compare with)."""

    reads_parameters: ClassVar[bool] = False
    """Whether `pieces` reads the values of parameters, which under `fully_shard` are gone after the forward."""

    watches_functions: ClassVar[bool] = False
    """Whether functions that the module's forward calls may be recorded instead of the module."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        """Count the leading dimensions of an output that may hold the samples."""
        return len(shape) - self.feature_dims

    def extras(self, result: Any) -> list[Tensor]:
        """What to keep of the graph that a call has just made."""
        return []

    def watch(self, unit: Unit, report: Report) -> Watch | None:
        """What is entered while the module's forward runs, to report the uses of its parameters; None: nothing."""
        return None

    @abstractmethod
    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        """Per-sample gradients of the unit's trained parameters.

        Args:
            layouts: how each output holds the samples; None where sample i's gradient had to be taken by a backward
                of its own, so that the inputs belong to every sample.
            backprops: each output's gradient, samples first (`Layout.samples_first`).
        """


def trained_pieces(
    call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
) -> Pieces:
    """Ask the call's adapter for the gradients of the trained parameters, and check its answer.

    A gradient that an adapter leaves out in one of several calls would be missing from a sum, unseen. What it returns
    beyond the trained parameters (a frozen bias) is left aside.

    Raises:
        ValueError: a trained parameter has no gradient, or one of another shape or number of samples.
    """
    if call.is_nested and call.unit.adapter.replays:
        raise nested_replay(type(call.unit.module).__name__)
    found = call.unit.adapter.pieces(call, layouts, backprops)
    kind, n = type(call.unit.adapter).__name__, len(backprops[0])
    for name in call.unit.names:
        if name not in found:
            raise ValueError(
                f"{kind} returned no gradient for parameter {name!r} of module {call.module_name!r}. Return one from "
                f"pieces, or freeze the parameter (requires_grad_(False))."
            )
        expected = _parameter_shape(call.unit.module, name)
        if found[name].shape != expected or found[name].samples != n:
            raise ValueError(
                f"{kind} returned gradients of shape [samples, {_sides(found[name].shape)}] for parameter {name!r} of "
                f"module {call.module_name!r}; expected [samples, {_sides(expected)}] with one row for each sample of "
                "the output's gradient."
            )
    return {name: found[name] for name in call.unit.names}


def _sides(shape: torch.Size) -> str:
    return ", ".join(str(side) for side in shape)


def _parameter_shape(module: nn.Module, name: str) -> torch.Size:
    path, _, leaf = name.rpartition(".")
    parameter = module.get_submodule(path)._parameters[leaf]
    assert parameter is not None
    return parameter.shape


def inputs_for(
    x: Tensor, layout: Placement | None, backprops: Float[Tensor, "n ..."]
) -> Shaped[Tensor, "n ..."]:
    """An input with the samples first.

    Where there is no layout it is shared by all samples, but zero for those that the output's gradient does not reach.
    Numbers that are not finite are zero in it: the NaN of one sample times the zero of another would be NaN.
    """
    n = len(backprops)
    if layout is not None:
        return layout.samples_first(x, n)
    x = zeroed(x)
    return zero_rows(x.unsqueeze(0).expand(n, *x.shape), (backprops == 0).flatten(1).all(1))
