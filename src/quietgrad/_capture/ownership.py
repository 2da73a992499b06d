"""Which module's calls give each trained parameter its gradients.

Usually it is the module that holds the parameter. Some parameters are held by one module and used by another:
`F.linear(x, self.child.weight)`, ParameterList, low-rank adapters. Their gradients come from running again the
innermost module whose calls contain all their uses. The graph of the first losses shows which one that is, so until
then the calls of all modules are recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from quietgrad._capture.adapters.fallback import FallbackAdapter
from quietgrad._capture.call import Call, Unit
from quietgrad._capture.graph import Graph, Use, find_uncovered
from quietgrad._capture.registry import find_units

MARK = "*"
"""Ends the name of a unit that is run again for parameters which modules inside it hold."""


class ParameterOwnership:
    """Which unit owns which trained parameter. Unresolved until the first losses show who uses what.

    Args:
        names: id of each trained parameter → its name in the model.
    """

    def __init__(self, model: nn.Module, names: dict[int, str]) -> None:
        self.holders = list(find_units(model, names))
        self.units = [*self.holders, *modules_using(model, names)]
        self.is_resolved = False
        self._users: dict[str, str] = {}
        self._resolved: set[int] = set()

    def resolve(self, graph: Graph, calls: list[Call], used: set[Use]) -> list[Unit]:
        """Find the owners in the graph of the first losses; return the units that own something."""
        # Units with the mark contain their children's calls. A use is first looked for in the calls of the holders
        # themselves, and only what those do not cover is given to a marked unit, whose replay is slower.
        outer = [call for call in calls if call.unit.name.endswith(MARK)]
        self._users = find_users(graph, [call for call in calls if call not in outer], outer, used)
        self.units = [kept for unit in self.units if (kept := self._owned_part(unit))]
        self._resolved = {id(unit) for unit in self.units}
        self.is_resolved = True
        return self.units

    def owner_of(self, parameter: str) -> str | None:
        """Return the unit that is run again for a parameter; None: the module that holds it is its owner."""
        return self._users.get(parameter)

    def restrict(self, call: Call) -> Call | None:
        """Return the call with only the parameters that its unit owns; None, and freed, if there are none.

        Only calls that were recorded before the owners were resolved are changed.
        """
        if id(call.unit) in self._resolved:
            return call
        unit = self._owned_part(call.unit)
        if unit is None:
            call.free()
            return None
        call.unit = unit
        return call

    def _owned_part(self, unit: Unit) -> Unit | None:
        """Return the unit with the parameters that it owns, each once under its first name; None without any."""
        wanted = unit.name if unit.name.endswith(MARK) else None
        local: dict[str, str] = {}
        for key, full in unit.names.items():
            # A tied parameter has several local names in one module. It must get one gradient, or the sum would count
            # it twice.
            if self.owner_of(full) == wanted and full not in local.values():
                local[key] = full
        return dataclasses.replace(unit, names=local) if local else None


def modules_using(model: nn.Module, names: Mapping[int, str]) -> Iterator[Unit]:
    """Yield every module that may use the trained parameters of modules inside it.

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


def find_users(graph: Graph, calls: Iterable[Call], outer: list[Call], used: set[Use]) -> dict[str, str]:
    """Map each parameter used outside its holder to the innermost unit that contains all its uses."""
    found: dict[str, str] = {}
    for name in {name for _, name in find_uncovered(graph, calls, used)}:
        nodes = {node for node, parameter in used if parameter == name}
        inside: dict[str, set[object]] = {}
        for call in outer:
            if name in call.unit.names.values():
                inside.setdefault(call.unit.name, set()).update(graph.inside(call))
        enough = [unit for unit, contained in inside.items() if nodes <= contained]
        if enough:
            # More dots mean further inside; the model itself, whose name is the bare mark, comes last.
            found[name] = max(enough, key=lambda unit: (unit != MARK, unit.count(".")))
    return found
