"""Hears the calls of a model's modules, through forward hooks, and says which of them account for which parameters.

Mostly a module accounts for its own. Those that one module owns and another one uses (`F.linear(x, self.child.weight)`,
ParameterList, adapters) get their gradients from running again the innermost module whose calls hold all their uses.
Which one that is shows in the graph of the first losses, so until then the calls of all modules are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from quietgrad._capture.adapters.fallback import FallbackAdapter
from quietgrad._capture.call import Call, Hook, Unit, Watch, record_call, separate_outputs
from quietgrad._capture.dependence import Dependence
from quietgrad._capture.graph import Graph, Use, uncovered
from quietgrad._capture.registry import find_units
from quietgrad._capture.validation import NORMS, check_norm

MOST_PENDING = 4096
"""Recorded calls that wait for their losses; older ones are given up, so that evaluating with grad on leaks nothing."""

MARK = "*"
"""Behind the name of a module that is run again for what it borrows."""


class Pass:
    """The calls recorded since losses were last collected."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}
        self.rng: dict[str, Tensor] = {}


class Watches(threading.local):
    """The watches that are open in this thread: another one may run the same model without gradients."""

    def __init__(self) -> None:
        self.opened: list[Watch | None] = []


class Listener:
    """The calls that a model makes of its modules.

    Args:
        model: any module; hooks are put on by `attach` and taken off by `detach`, nothing else is touched.
        units: the modules that are listened to.
    """

    def __init__(self, model: nn.Module, units: list[Unit]) -> None:
        self.model = model
        self._units = units
        self.parts = Parts(model)
        self.dependence = Dependence(self._rehearsal)
        self._pass = Pass()
        self._serial = 0
        self._silent = self._rehearsing = False
        self.in_public = False
        """Whether a forward of public losses is under way."""
        self._handles: list[RemovableHandle] = []

    # ---- hooks ----------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks on."""
        if not self._handles:
            self._hook()

    def _hook(self) -> None:
        self._handles.append(self.model.register_forward_pre_hook(Hook(self._before_model), with_kwargs=True))
        self._handles.append(
            self.model.register_forward_hook(Hook(self._after_model), with_kwargs=True, always_call=True)
        )
        for unit in self._units:
            self._handles.extend(
                self._watch_functions(unit) if unit.adapter.watches_functions else self._watch(unit)
            )

    def listen_to(self, units: list[Unit]) -> None:
        """From now on to these."""
        self._unhook()
        self._units = units
        self._hook()

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self._unhook()
        self.forget_all()
        self.dependence.end()

    @property
    def attached(self) -> bool:
        return bool(self._handles)

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, unit: Unit) -> Iterator[RemovableHandle]:
        if unit.adapter.replays:
            yield unit.module.register_forward_pre_hook(Hook(self._remembering_rng(unit)))
        yield unit.module.register_forward_hook(Hook(self._recording(unit)), with_kwargs=True, prepend=True)

    def _watch_functions(self, unit: Unit) -> Iterator[RemovableHandle]:
        """A watch around the module's forward; taken off even if the forward fails."""
        watches, recording = Watches(), self._recording(unit)

        def report(use: Unit, given: Tensor, result: Tensor) -> None:
            if self._active():
                self._record(use, (given,), {}, result)

        def enter(_: nn.Module, __: Any) -> None:
            if self._active() or self._rehearsing:
                watches.opened.append(unit.adapter.watch(unit, report))
                if watches.opened[-1] is not None:
                    watches.opened[-1].__enter__()

        def leave(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            watch = watches.opened.pop() if watches.opened else None
            if watch is not None:
                watch.__exit__(None, None, None)
            seen = watch is not None and watch.complete
            return None if seen or result is None else recording(module, args, kwargs, result)

        if unit.adapter.replays:
            yield unit.module.register_forward_pre_hook(Hook(self._remembering_rng(unit)))
        yield unit.module.register_forward_pre_hook(Hook(enter))
        yield unit.module.register_forward_hook(Hook(leave), prepend=True, with_kwargs=True, always_call=True)

    def _before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name, part in self.parts.modules():
            if isinstance(part, NORMS):
                check_norm(part, f"module {name!r}")
        if not self._silent and not self.in_public:
            self.dependence.enter_model(args, kwargs)

    def _after_model(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if not self._silent and not self.in_public:
            self.dependence.leave_model(module, args, kwargs, result)

    def _remembering_rng(self, unit: Unit) -> Any:
        """A replay must draw what the call drew."""

        def hook(_: nn.Module, __: Any) -> None:
            if self._active():
                self._pass.rng[unit.name] = torch.get_rng_state()

        return hook

    def _recording(self, unit: Unit) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            if not self._active():
                return None
            if unit.adapter.replays:
                result = separate_outputs(result)
            self._record(unit, args, kwargs, result)
            return result

        return hook

    def _active(self) -> bool:
        return torch.is_grad_enabled() and not self._silent

    def _record(self, unit: Unit, args: Any, kwargs: Any, result: Any) -> None:
        index = self._pass.counts.get(unit.name, 0)
        call = record_call(
            unit, index, self._serial, args, kwargs, result, self._pass.rng.pop(unit.name, None)
        )
        if call is None:
            return
        self._serial += 1
        self._pass.counts[unit.name] = index + 1
        self._pass.calls.append(call)
        del self._pass.calls[:-MOST_PENDING]

    # ---- what was heard -------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """Those that wait for their losses."""
        return self._pass.calls

    def forget(self, calls: list[Call]) -> None:
        """What the losses used is done with, and so is everything older than it."""
        newest = max((call.serial for call in calls), default=-1)
        self._pass.calls = [call for call in self._pass.calls if call.serial > newest]
        self._pass.counts = {}

    def forget_all(self) -> None:
        self._pass = Pass()

    # ---- what is not to be heard ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Record a public forward apart from the private one around it."""
        outer, was_public = self._pass, self.in_public
        self._pass, self.in_public = Pass(), True
        try:
            with self.dependence.aside():
                yield
        finally:
            self._pass, self.in_public = outer, was_public

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """No recording while replays and checkpoint recomputations run."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    @contextlib.contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """The model is run again for a test, and its buffers are what they were afterwards."""
        kept = [(buffer, buffer.clone(), buffer._version) for buffer in self.model.buffers()]
        with self.quiet():
            self._rehearsing = True
            try:
                yield
            finally:
                self._rehearsing = False
                for buffer, value, version in kept:
                    if buffer._version != version:
                        buffer.copy_(value)


# ---- what the model consists of -----------------------------------------------------------------------------

Table = Mapping[str, Any]
"""What a module keeps by name."""


class Parts:
    """What `named_modules` and `named_parameters` give, remembered with everything that they look at on the way.

    Both read dozens of attributes at every call, and a step asks for them several times. What they give is the same as
    long as every module has the same submodules, and parameters, under the same names, which is compared by identity.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._plain = False
        self._submodules, self._parameters = Tables("_modules"), Tables("_parameters")
        self._named: list[tuple[str, nn.Module]] = []
        self._all: dict[str, nn.Parameter] = {}

    def modules(self) -> list[tuple[str, nn.Module]]:
        """Every module once, with its name."""
        if not self._modules or not self._plain or not self._submodules.same(self._modules):
            self._named = list(self._model.named_modules())
            self._modules = [module for _, module in self._named]
            self._plain = all(map(_walked_by_torch, self._modules))
            self._submodules.remember(self._modules)
            self._parameters = Tables("_parameters")
        return self._named

    def trained(self) -> dict[str, nn.Parameter]:
        """Every parameter that requires a gradient now, once, with its name."""
        self.modules()
        if not self._plain or not self._parameters.same(self._modules):
            self._all = dict(self._model.named_parameters())
            self._parameters.remember(self._modules)
        return {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}


def _walked_by_torch(module: nn.Module) -> bool:
    """Whether a module says by torch's own methods what is in it: others may say something else at every call."""
    kind = type(module)
    return (
        kind.named_modules is nn.Module.named_modules
        and kind.named_parameters is nn.Module.named_parameters
        and kind._named_members is nn.Module._named_members
    )


class Tables:
    """One table of each of some modules, and what it held.

    Args:
        name: the attribute that it is.
    """

    def __init__(self, name: str) -> None:
        self._of = attrgetter(name)
        self._keys: list[list[str]] = []
        self._values: list[Any] = []

    def remember(self, modules: list[nn.Module]) -> None:
        tables: list[Table] = [self._of(module) for module in modules]
        self._keys = [list(table) for table in tables]
        self._values = [value for table in tables for value in table.values()]

    def same(self, modules: list[nn.Module]) -> bool:
        """Whether the tables of these modules hold what was remembered."""
        tables: list[Table] = list(map(self._of, modules))
        return list(map(list, tables)) == self._keys and all(
            map(is_, chain.from_iterable([table.values() for table in tables]), self._values)
        )


# ---- who accounts for what -----------------------------------------------------------------------------------


class Lending:
    """Which unit accounts for which trained parameter. Open until the first losses show who uses what.

    Args:
        names: id of each trained parameter → its name in the model.
    """

    def __init__(self, model: nn.Module, names: dict[int, str]) -> None:
        self.units = [*find_units(model, names), *borrowers(model, names)]
        self.settled = False
        self._lent: dict[str, str] = {}
        self._accountable: set[int] = set()

    def settle(self, graph: Graph, calls: list[Call], used: set[Use]) -> list[Unit]:
        """The units that account for something; no other needs to be listened to."""
        borrowing = [call for call in calls if call.unit.name.endswith(MARK)]
        self._lent = lent(graph, [call for call in calls if call not in borrowing], borrowing, used)
        self.units = [kept for unit in self.units if (kept := accountable(unit, self._lent))]
        self._accountable = {id(unit) for unit in self.units}
        self.settled = True
        return self.units

    def accounted(self, call: Call) -> Call | None:
        """The call with the parameters that it accounts for, if any: only one that was recorded before all was settled
        needs to be changed. One that accounts for nothing holds what it was given and gave no longer."""
        if id(call.unit) in self._accountable:
            return call
        unit = accountable(call.unit, self._lent)
        if unit is None:
            call.free()
            return None
        call.unit = unit
        return call


def borrowers(model: nn.Module, names: Mapping[int, str]) -> Iterator[Unit]:
    """Every module that may borrow the trained parameters of modules inside it.

    Args:
        names: id of each trained parameter → its name in the model.
    """
    for name, module in model.named_modules():
        if not any(True for _ in module.children()):
            continue
        local = dict(module.named_parameters(remove_duplicate=False))
        inside = {key: names[id(p)] for key, p in local.items() if id(p) in names}
        if inside:
            yield Unit(name + MARK, module, FallbackAdapter(), inside)


def lent(graph: Graph, calls: Iterable[Call], borrowing: list[Call], used: set[Use]) -> dict[str, str]:
    """Each parameter that is used outside its owner → the innermost borrower that holds all its uses."""
    found: dict[str, str] = {}
    for name in {name for _, name in uncovered(graph, calls, used)}:
        nodes = {node for node, parameter in used if parameter == name}
        holding: dict[str, set[object]] = {}
        for call in borrowing:
            if name in call.unit.names.values():
                holding.setdefault(call.unit.name, set()).update(graph.inside(call))
        enough = [borrower for borrower, inside in holding.items() if nodes <= inside]
        if enough:
            found[name] = max(enough, key=lambda borrower: (borrower != MARK, borrower.count(".")))
    return found


def accountable(unit: Unit, lending: Mapping[str, str]) -> Unit | None:
    """The unit with the parameters that it accounts for, each once under its first name: a borrower what it borrows,
    all others what they have not lent. None if there are none."""
    local: dict[str, str] = {}
    for key, full in unit.names.items():
        mine = lending.get(full) == unit.name if unit.name.endswith(MARK) else full not in lending
        if mine and full not in local.values():
            local[key] = full
    return dataclasses.replace(unit, names=local) if local else None
