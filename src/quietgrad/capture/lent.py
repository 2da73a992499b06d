"""Parameters that one module owns and another one uses: `F.linear(x, self.child.weight)`, ParameterList, adapters.

Their gradients come from running again the innermost module whose calls hold all their uses. Which one that is shows in
the graph of the first losses, so until then the calls of all modules are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from quietgrad.capture.adapters.fallback import FallbackAdapter
from quietgrad.capture.call import Call, Unit
from quietgrad.capture.graph import Graph, Use, uncovered
from quietgrad.capture.registry import units

MARK = "*"
"""Behind the name of a module that is run again for what it borrows."""


class Lending:
    """Which unit accounts for which trained parameter. Open until the first losses show who uses what.

    Args:
        names: id of each trained parameter → its name in the model.
    """

    def __init__(self, model: nn.Module, names: dict[int, str]) -> None:
        self.units = [*units(model, names), *borrowers(model, names)]
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
            call.let_go()
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
