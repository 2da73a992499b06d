"""A model whose forward and backward are compiled, with the factors of its trained layers as results.

torch.compile turns forward and backward into two functions, in which hooks on inner modules never run. So each trained
layer gets a *tap*: a leaf of zeros that is added to the layer's output.

    y = layer(x; detached parameters) + tap

The gradient at the tap is the gradient at the layer's output, and an ordinary result of the compiled backward. The
layer's input is an ordinary result of the compiled forward. A detached parameter gets no gradient, so no sum over the
batch is ever formed. A trained parameter that is used anywhere else still enters the graph, where the coverage check
finds and names it. Nothing else of the graph inside is seen: samples are attributed by probing, at every micro-batch.

Checked by: tests/capture/test_compiled.py, tests/attacks/test_compiled_models.py
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from quietgrad._capture.call import Unit, tensors_of
from quietgrad._capture.call_recorder import CallRecorder
from quietgrad._capture.graph import Graph
from quietgrad._capture.registry import computes_like
from quietgrad._errors import PrivacyError

MOST_SIGNATURES = 256
"""Shapes of inputs whose taps are remembered; each takes a pass over shapes alone."""

NAME = "quietgrad_tap"
"""The attribute of a layer that holds its tap."""


Output = tuple[torch.Size, torch.dtype]
"""What a pass over shapes says of a layer's output."""


class Tap:
    """What one layer hands out of a compiled function. Copies and pickles of it are empty.

    Attributes:
        zeros: added to the layer's output; None: the layer only computes.
        weight, bias: its parameters, detached outside of the compiled function: inside, they would be parameters still.
        input: what the layer was given.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self.zeros: Tensor | None = None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.input: Tensor | None = None

    def open(self, layer: nn.Module, output: Output | None) -> Tensor | None:
        """Take the layer's parameters, and make a leaf for its output; None if it is not called."""
        if output is None:
            return None
        weight, bias = layer.weight, getattr(layer, "bias", None)
        assert isinstance(weight, Tensor)
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        # One zero for all elements: a tap takes no memory.
        shape, dtype = output
        return torch.zeros((), dtype=dtype, device=weight.device).expand(shape).requires_grad_()

    def __deepcopy__(self, _: dict[int, Any]) -> Tap:
        return Tap()

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        return Tap, ()


Compute = Callable[[Any, Tensor, Tensor, Tensor | None], Tensor]
"""From a layer, its input, its weight and its bias to its output."""


def _linear(_: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _convolution(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = layer._conv_forward(x, weight, bias)
    return result


def _embedding(layer: Any, x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    return F.embedding(x, weight, layer.padding_idx)


def _layer_norm(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


def _rms_norm(layer: Any, x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    return F.rms_norm(x, layer.normalized_shape, weight, layer.eps)


def _group_norm(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.group_norm(x, layer.num_groups, weight, bias, layer.eps)


COMPUTE: dict[type[nn.Module], Compute] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
}
"""What each kind of layer computes from given parameters."""


def forward_with_tap(compute: Compute) -> Callable[[Any, Tensor], Tensor]:
    """Make the forward of a layer that has a tap."""

    def forward(layer: Any, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch's layers have
        tap = getattr(layer, NAME)
        if tap.zeros is None:
            return compute(layer, input, layer.weight, getattr(layer, "bias", None))
        tap.input = input.detach()
        zeros: Tensor = tap.zeros
        return compute(layer, input, tap.weight, tap.bias) + zeros

    return forward


def _with_taps(run: Callable[..., Any], taps: list[Tap]) -> Callable[..., Any]:
    """Make the function that is compiled: leaves come as arguments, since sizes of attributes would be constants."""

    def forward(zeros: list[Tensor | None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tap, zero in zip(taps, zeros, strict=True):
            tap.zeros = zero
        return run(*args, **kwargs)

    return forward


class CompiledModel:
    """Run a model compiled, and record the calls of its trained layers.

    The model stays the object that it was. While attached, the `forward` of the model and of its trained layers are
    attributes of these objects; `detach` removes them. Copies of the model run uncompiled.

    Args:
        units: the modules that own trained parameters.
        recorder: gets the calls.
        options: of torch.compile.

    Raises:
        ValueError: a trained layer is of a kind that cannot be compiled.
    """

    def __init__(
        self, model: nn.Module, units: Sequence[Unit], recorder: CallRecorder, options: Mapping[str, Any]
    ) -> None:
        self._model, self._recorder, self._options = model, recorder, dict(options)
        self._units = [(unit, _check_unit(unit)) for unit in units]
        if "forward" in vars(model):
            raise ValueError(
                "The model has a forward of its own as an attribute. Define it in the class, or leave compile out."
            )
        self._eager: Callable[..., Any] = model.forward
        self._plain: Callable[..., Any] = model.forward
        self._tapped: Callable[..., Any] = model.forward
        self._shapes: OrderedDict[Any, dict[str, Output]] = OrderedDict()

    def attach(self) -> None:
        """Put the taps on."""
        for unit, compute in self._units:
            vars(unit.module)[NAME] = Tap()
            vars(unit.module)["forward"] = MethodType(forward_with_tap(compute), unit.module)
        self._eager = self._model.forward
        taps = [getattr(unit.module, NAME) for unit, _ in self._units]
        self._plain = torch.compile(self._eager, **self._options)
        self._tapped = torch.compile(_with_taps(self._eager, taps), **self._options)
        vars(self._model)["forward"] = RootForward(self)

    def detach(self) -> None:
        """Leave the model as it was."""
        for module in [self._model, *(unit.module for unit, _ in self._units)]:
            for name in (NAME, "forward"):
                vars(module).pop(name, None)

    @property
    def model(self) -> nn.Module:
        return self._model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; where gradients are recorded, with taps."""
        if not self._recorder.is_active:
            return self._plain(*args, **kwargs)
        shapes = self._output_shapes(args, kwargs)
        taps = [(unit, getattr(unit.module, NAME)) for unit, _ in self._units]
        zeros = [tap.open(unit.module, shapes.get(unit.name)) for unit, tap in taps]
        try:
            with _all_buffers_kept():
                result = self._tapped(zeros, args, kwargs)
            for (unit, tap), zero in zip(taps, zeros, strict=True):
                if zero is not None:
                    assert tap.input is not None, f"{unit.name} ran in the pass over shapes, and then did not"
                    self._recorder.record_tap(unit, tap.input, zero)
        finally:
            for _, tap in taps:
                tap.clear()
        return result

    def _output_shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Output]:
        """Find the shape of every trained layer's output, by a pass that computes shapes alone."""
        key = _signature(self._model, args, kwargs)
        if key not in self._shapes:
            self._shapes[key] = self._infer_shapes(args, kwargs)
            if len(self._shapes) > MOST_SIGNATURES:
                self._shapes.popitem(last=False)
        return self._shapes[key]

    def _infer_shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Output]:
        found: dict[str, Output] = {}
        called = Counter[str]()
        given: list[tuple[str, Tensor, int]] = []

        def note(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: Any, kwargs: Any, result: Tensor) -> None:
                called[name] += 1
                found[name] = result.shape, result.dtype
                given.extend((name, tensor, tensor._version) for tensor in tensors_of(args, kwargs))

            return hook

        handles = [
            unit.module.register_forward_hook(note(unit.name), with_kwargs=True) for unit, _ in self._units
        ]
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with fake, torch.no_grad():
                inputs = pytree.tree_map_only(Tensor, fake.from_tensor, (args, kwargs))
                self._eager(*inputs[0], **inputs[1])
        finally:
            for handle in handles:
                handle.remove()
        twice = next((name for name, times in called.items() if times > 1), None)
        if twice is not None:
            raise ValueError(
                f"Module {twice!r} is called {called[twice]} times in one forward, and a compiled layer has one tap. "
                "Leave compile out, or give every call a module of its own."
            )
        changed = next((name for name, tensor, version in given if tensor._version != version), None)
        if changed is not None:
            raise PrivacyError(
                f"The input of module {changed!r} was changed in place after the module used it, so its per-sample "
                "gradients are lost. Replace the in-place operation (x += y) by x = x + y."
            )
        return {name: (torch.Size(map(int, shape)), dtype) for name, (shape, dtype) in found.items()}


class RootForward:
    """The `forward` of a compiled model. Copies and pickles of the model have its class's own instead."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled.forward(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copy = memo[id(self._compiled.model)]
        return MethodType(type(copy).forward, copy)

    def __reduce__(self) -> Any:
        return getattr, (self._compiled.model, "forward")


def _check_unit(unit: Unit) -> Compute:
    """Return what a layer computes, or refuse it."""
    for kind, compute in COMPUTE.items():
        if isinstance(unit.module, kind) and computes_like(unit.module, kind):
            if not unit.name:
                raise ValueError(
                    f"The model is one layer, a {kind.__name__}: around it there is nothing to compile. Leave compile "
                    "out, or train nn.Sequential(layer)."
                )
            return compute
    known = ", ".join(kind.__name__ for kind in COMPUTE)
    place = f"Module {unit.name!r}" if unit.name else "The model"
    raise ValueError(
        f"{place}, a {type(unit.module).__name__}, trains {', '.join(unit.names.values())} and cannot be compiled: "
        f"taps exist for {known}. Freeze it, move its parameters into such a layer, or leave compile out."
    )


def _signature(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    marks = tuple(
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves
    )
    kind = next(model.parameters()).device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return marks, str(structure), model.training, autocast


def _all_buffers_kept() -> AbstractContextManager[Any]:
    """Compile backwards that overwrite nothing they have saved: probing runs one several times."""
    config: Any = torch._functorch.config
    kept: AbstractContextManager[Any] = config.patch(donated_buffer=False)
    return kept


def allow_several_backwards(graph: Graph) -> None:
    """Note in compiled functions of a graph that their backwards overwrite nothing.

    torch asks for the option above once more where a backward runs, which on a device is a thread with options of its
    own. It does not ask where the list of what is overwritten is there, and empty.
    """
    for node in graph.order:
        about: Any = getattr(getattr(type(node), "_forward_cls", None), "metadata", None)
        if about is not None and getattr(about, "bw_donated_idxs", ()) is None:
            about.bw_donated_idxs = []
