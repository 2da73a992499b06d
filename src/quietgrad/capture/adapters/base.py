"""What an adapter is: the per-sample gradients of one kind of module, from its inputs and output gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from quietgrad.gradients.blocks import BlockGrads
from quietgrad.gradients.row_arithmetic import zero_rows

if TYPE_CHECKING:
    from quietgrad.capture.call import Call, Unit
    from quietgrad.capture.layout import Placement

Pieces = dict[str, BlockGrads]
"""Local parameter name → its per-sample gradients from one call."""
Report = Callable[["Unit", Tensor, Tensor], None]
"""Takes a unit for one use of some parameters, what they were given, and what came of it."""


class Watch(TorchFunctionMode):
    """Sees the torch functions that a module's forward calls."""

    complete: bool = True
    """Whether every use of the module's parameters was reported; otherwise the module is recorded as a whole."""


class Adapter(ABC):
    """One kind of module; every module has an adapter object of its own.

    Example:
        class ScaleAdapter(qg.capture.Adapter):  # y = w ⊙ x
            def pieces(self, call, layouts, backprops):
                return {"weight": qg.gradients.DenseGrad(call.args[0] * backprops[0])}
    """

    replays: ClassVar[bool] = False
    """Whether it runs the module again (and so keeps the results to compare with)."""

    watches_functions: ClassVar[bool] = False
    """Whether functions that the module's forward calls may be recorded instead of the module."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        """How many leading dimensions of an output may hold the samples."""
        return len(shape)

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


def inputs_for(
    x: Tensor, layout: Placement | None, backprops: Float[Tensor, "n ..."]
) -> Shaped[Tensor, "n ..."]:
    """An input with the samples first.

    Where there is no layout it is shared by all samples, but zero for those that the output's gradient does not reach:
    another sample's NaN times their zero would be NaN.
    """
    n = len(backprops)
    if layout is not None:
        return layout.samples_first(x, n)
    return zero_rows(x.unsqueeze(0).expand(n, *x.shape), (backprops == 0).flatten(1).all(1))
