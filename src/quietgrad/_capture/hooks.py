"""All hooks on a model: one object puts them on, calls the parts in a fixed order, and takes them off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from quietgrad._capture.call import Unit
from quietgrad._capture.call_recorder import CallRecorder


@runtime_checkable
class ForwardObserver(Protocol):
    """What is asked before forwards, besides the recorder of calls."""

    def before_module(self) -> None:
        """Called before the model, or any part of it that contains parameters, runs."""

    def before_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before the model as a whole runs."""


class ModelHooks:
    """Own every hook on a model.

    Before a forward of the model:

    1. `observer.before_module()`, also before any part with parameters: a step begins, the model's state is remembered;
    2. `observer.before_model(args, kwargs)`: inputs are compared with private records;
    3. `recorder.before_model()`.

    Around a recorded module, step 1, `recorder.before_unit(unit)`, its forward, `recorder.after_unit(unit, …)`; the
    latter comes before hooks of the user's, which may change the result. Gradients that autograd is about to add to
    `p.grad` go to the function given to `hook_gradients`.

    Copies of the model get hooks that do nothing. Checked by: tests/laws/test_law10_no_trace.py

    Args:
        model: gets the hooks with `attach`.
        recorder: of calls of the model's modules.
        model_only: put hooks on the model itself and on no module inside it, which a compiler could not trace.
    """

    def __init__(self, model: nn.Module, recorder: CallRecorder, *, model_only: bool = False) -> None:
        self._model, self._recorder, self._model_only = model, recorder, model_only
        self._handles: list[RemovableHandle] = []
        self._unit_handles: list[RemovableHandle] = []
        self._nodes: dict[str, tuple[Node, RemovableHandle]] = {}

    @property
    def is_attached(self) -> bool:
        return bool(self._handles)

    def attach(self, units: Sequence[Unit], observer: ForwardObserver | None = None) -> None:
        """Put the hooks of forwards on, once."""
        if self._handles:
            return
        if observer is not None:
            self._handles += _observe(self._model, observer, model_only=self._model_only)
        before = Hook(lambda *_: self._recorder.before_model())
        self._handles.append(self._model.register_forward_pre_hook(before))
        self.record(units)

    def record(self, units: Sequence[Unit]) -> None:
        """Record the calls of these units, and of no others, from now on."""
        if self._model_only:
            return
        _remove(self._unit_handles)
        for unit in units:
            self._unit_handles += self._record(unit)

    def _record(self, unit: Unit) -> Iterator[RemovableHandle]:
        before, after = partial(self._recorder.before_unit, unit), partial(self._recorder.after_unit, unit)
        watches = unit.adapter.watches_functions
        if unit.adapter.replays or watches:
            yield unit.module.register_forward_pre_hook(Hook(before))
        # A watch must be closed even if the forward fails.
        yield unit.module.register_forward_hook(
            Hook(after), with_kwargs=True, prepend=True, always_call=watches
        )

    def hook_gradients(self, parameters: Mapping[str, nn.Parameter], hook: Callable[[Any], None]) -> None:
        """Call `hook` before autograd adds to the `grad` of a trained parameter.

        To be called again after `model.to(…)`, which gives parameters new nodes.
        """
        trained = [name for name, p in parameters.items() if p.requires_grad]
        nodes = accumulating([parameters[name] for name in trained])
        for name, node in zip(trained, nodes, strict=True):
            known = self._nodes.get(name)
            if known is None or known[0] is not node:
                # A parameter holds its node only weakly, so the node has to be kept with the handle.
                self._nodes[name] = node, node.register_prehook(hook)

    def detach(self) -> None:
        """Take all hooks off."""
        _remove(self._handles)
        _remove(self._unit_handles)
        for _, handle in self._nodes.values():
            handle.remove()
        self._nodes.clear()


def _observe(model: nn.Module, observer: ForwardObserver, *, model_only: bool) -> Iterator[RemovableHandle]:
    # Containers too: a step must begin before any call of it is recorded, at the outermost module that runs.
    for module in [model] if model_only else model.modules():
        if module is model or any(True for _ in module.parameters()):
            yield module.register_forward_pre_hook(Hook(lambda *_: observer.before_module()))
    before = Hook(lambda _, args, kwargs: observer.before_model(args, kwargs))
    yield model.register_forward_pre_hook(before, with_kwargs=True)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def accumulating(parameters: Sequence[nn.Parameter]) -> list[Node]:
    """Return the node that would add to the `grad` of each parameter, by one operation for all of them.

    The operation copies nothing and is thrown away. Its own node lists the nodes that gradients would go to.
    """
    if not parameters:
        return []
    if any(type(parameter) is not nn.Parameter for parameter in parameters):
        # A subclass (the DTensor of a shard) need not have the operation below.
        return [get_gradient_edge(parameter).node for parameter in parameters]
    if not torch.is_grad_enabled():
        with torch.enable_grad():
            return accumulating(parameters)
    # The public way to these nodes is `p.expand_as(p).grad_fn.next_functions`, one operation for each parameter.
    # `DelayedError` takes any number of tensors and makes one node for all of them.
    read: Any = torch._C._functions.DelayedError("never run", len(parameters))(*parameters)
    node: Any = (read if isinstance(read, Tensor) else read[0]).grad_fn
    return [following for following, _ in node.next_functions]


# ---- hooks that copies do not have ---------------------------------------------------------------------------


class Hook:
    """A hook for this model only: `copy.deepcopy(model)` and `torch.save(model)` get one that does nothing.

    Args:
        function: called with whatever arguments the hook gets.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __deepcopy__(self, _: dict[int, Any]) -> Callable[..., None]:
        return idle

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _idle_hook, ()


def idle(*_: Any) -> None:
    """Do nothing: the hook of a copy."""


def _idle_hook() -> Callable[..., None]:
    return idle
