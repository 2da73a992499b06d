"""Calls of modules, as the hooks record them.

A hook sees a call; its inputs are remembered, and where gradients arrive at its outputs. The adapter of the module's
kind then says what the gradients of its parameters are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from quietgrad._capture.ragged import rows_of
from quietgrad._errors import PrivacyError
from quietgrad._kernels.generators import GeneratorStates

if TYPE_CHECKING:
    from quietgrad._capture.adapter import Adapter


@dataclass(frozen=True)
class Unit:
    """A module together with the parameters of it that are trained.

    Args:
        names: local parameter name → its name in the model.
    """

    name: str
    module: nn.Module
    adapter: Adapter
    names: dict[str, str]


@dataclass(frozen=True)
class Output:
    """One tensor that a call returned: which of them, where its gradient arrives and the shape it has.

    Of a nested tensor that is the shape of its rows, joined.
    """

    position: int
    edge: GradientEdge
    shape: torch.Size
    is_nested: bool = False


@dataclass(eq=False)
class Call:
    """One call of a unit. `index` counts the unit's calls in a pass, `serial` all calls; `extras` is what the adapter
    asked to keep of the graph."""

    unit: Unit
    index: int
    serial: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Output]
    results: list[Tensor]
    extras: list[Tensor]
    input_nodes: list[Node]
    autocast: tuple[bool, torch.dtype]
    rng: GeneratorStates | None
    versions: list[int]
    is_nested: bool = False
    """Whether it was given or returned nested tensors, of which only the rows are kept."""
    is_compiled: bool = False
    """Whether the call was made inside a compiled function, of whose graph nothing is seen."""
    is_shared: bool = False
    """Whether its gradients were taken from the inputs of all samples at once, which proves nothing of mixing."""
    is_odd: bool = False
    """Whether some samples had other outputs when they ran alone: odd records, or those that others influence."""

    @property
    def module_name(self) -> str:
        """The module's name in the model; of the model itself, its class."""
        return self.unit.name or type(self.unit.module).__name__

    @property
    def input(self) -> Tensor:
        """The first argument, however it was passed."""
        x = self.args[0] if self.args else self.kwargs["input"]
        assert isinstance(x, Tensor)
        return x

    def arguments(self, *names: str) -> dict[str, Any]:
        """Name the positional arguments, and add those that were passed by name."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def narrow_to(self, outputs: list[Output]) -> Call:
        """The same call, of which only these outputs matter."""
        return self if len(outputs) == len(self.outputs) else dataclasses.replace(self, outputs=outputs)

    def free(self) -> None:
        """Hold nothing any more: the gradients are taken."""
        self.args, self.kwargs, self.results, self.extras, self.versions = (), {}, [], [], []

    def check_inputs(self) -> None:
        """Refuse inputs that were written to after the module had read them."""
        # Inputs are kept by reference, not copied. torch counts writes to each tensor, so a changed counter is the
        # cheapest sign that the numbers are no longer those the module saw.
        if self.versions != versions(tensors_of(self.args, self.kwargs)):
            raise PrivacyError(
                f"The input of module {self.module_name!r} was changed in place after the module used it, so its "
                "per-sample gradients are lost. Replace the in-place operation (x += y) by x = x + y."
            )


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """All tensors that a call was given, or returned. Mostly that is a tuple of tensors, which needs no walk."""
    if not kwargs and _all_tensors(args):
        return list(args)
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _all_tensors(args: tuple[Any, ...]) -> bool:
    for arg in args:  # noqa: SIM110 - for one or two arguments a generator costs more than all the rest
        if not isinstance(arg, Tensor):
            return False
    return True


def versions(tensors: list[Tensor]) -> list[int]:
    """How often each was written to in place."""
    return [tensor._version for tensor in tensors]


def record_call(
    unit: Unit, index: int, serial: int, args: Any, kwargs: Any, result: Any, rng: GeneratorStates | None
) -> Call | None:
    """The call, or None where no gradient will come back."""
    inputs = tensors_of(args, kwargs)
    tensors = tensors_of((result,), {})
    # Only an output that requires grad can carry a gradient back; a frozen part of the model needs no memory here.
    outputs = [
        output_of(place, tensor, inputs) for place, tensor in enumerate(tensors) if tensor.requires_grad
    ]
    if not outputs:
        return None
    kind = tensors[0].device.type
    return Call(
        unit=unit,
        index=index,
        serial=serial,
        args=_detach(args),
        kwargs=_detach(kwargs) if kwargs else {},
        outputs=outputs,
        # Copies: an operation in place that follows would change what a replay is compared with.
        results=[tensor.detach().clone() for tensor in tensors] if unit.adapter.replays else [],
        extras=unit.adapter.extras(result),
        input_nodes=[tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None],
        # A replay has to run under the same precision, or its outputs would not be those recorded.
        autocast=(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),
        rng=rng,
        versions=versions([rows_of(tensor.detach()) if tensor.is_nested else tensor for tensor in inputs]),
        is_nested=any(tensor.is_nested for tensor in (*inputs, *tensors)),
    )


def record_tapped_call(unit: Unit, index: int, serial: int, given: Tensor, tap: Tensor) -> Call:
    """The call of a layer inside a compiled function, whose output gradient arrives at a leaf of its own."""
    kind = tap.device.type
    return Call(
        unit=unit,
        index=index,
        serial=serial,
        args=(given,),
        kwargs={},
        outputs=[Output(0, get_gradient_edge(tap), tap.shape)],
        results=[],
        extras=[],
        input_nodes=[],
        autocast=(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),
        rng=None,
        versions=versions([given]),
        is_compiled=True,
    )


def separate_outputs(result: Any) -> Any:
    """Several outputs, each behind a node of its own: where one output is computed from another (an LSTM cell's), the
    gradient at the other would otherwise hold the path through the module twice."""
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return result if len(tensors) < 2 else pytree.tree_map_only(Tensor, Tensor.clone, result)


def output_of(position: int, tensor: Tensor, inputs: list[Tensor]) -> Output:
    """A linear layer on 3-D input returns a view, whose own edge a later in-place operation would cut off: the
    gradient is taken at its base."""
    if tensor.is_nested:
        return Output(position, edge_of(tensor), rows_of(tensor.detach()).shape, is_nested=True)
    base = tensor._base
    # The base must not be an input of the call: a module that returns a view of its input would otherwise get the
    # gradient of the whole input, with the paths that do not lead through the module.
    # Nor a parameter: a module that expands one to a batch of a single sample returns a view of it.
    owned = base is not None and not base.is_leaf and base.requires_grad
    if base is not None and owned and _same_order(base, tensor) and _is_owned(base, inputs):
        return Output(position, edge_of(base), tensor.shape)
    return Output(position, edge_of(tensor), tensor.shape)


def edge_of(tensor: Tensor) -> GradientEdge:
    """Where the gradient of a tensor arrives: read off directly, but for leaves and for functions written in Python,
    which do not keep the graph behind them alive."""
    node = tensor.grad_fn
    if node is None or issubclass(type(node), torch._C._FunctionBase):
        return get_gradient_edge(tensor)
    return GradientEdge(node, tensor.output_nr)


def _same_order(base: Tensor, view: Tensor) -> bool:
    """Whether a gradient of the base is one of the view after a mere reshape (a transposed view's is not)."""
    return base.numel() == view.numel() and base.is_contiguous() and view.is_contiguous()


def _is_owned(base: Tensor, inputs: list[Tensor]) -> bool:
    return all(base is not tensor and base is not tensor._base for tensor in inputs)


def _detach(tree: Any) -> Any:
    if isinstance(tree, tuple) and _all_tensors(tree):
        return tuple([rows_of(leaf.detach()) for leaf in tree])
    return pytree.tree_map_only(Tensor, lambda leaf: rows_of(leaf.detach()), tree)
