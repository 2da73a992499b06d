"""The modules and trained parameters of a model, listed once and compared at every step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import nn

Table = Mapping[str, Any]
"""What a module holds by name."""


class ModelParts:
    """Cache `named_modules` and `named_parameters` of a model until they would give something else.

    Both read dozens of attributes at every call, and a step asks for them several times. Their answer is the same as
    long as every module has the same submodules and parameters under the same names. That is compared by identity.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._plain = False
        self._submodules, self._parameters = Tables("_modules"), Tables("_parameters")
        self._named: list[tuple[str, nn.Module]] = []
        self._all: dict[str, nn.Parameter] = {}

    def modules(self) -> list[tuple[str, nn.Module]]:
        """Return every module once, with its name."""
        if not self._modules or not self._plain or not self._submodules.same(self._modules):
            self._named = list(self._model.named_modules())
            self._modules = [module for _, module in self._named]
            self._plain = all(map(_walked_by_torch, self._modules))
            self._submodules.remember(self._modules)
            self._parameters = Tables("_parameters")
        return self._named

    def trained(self) -> dict[str, nn.Parameter]:
        """Return every parameter that requires a gradient now, once, with its name."""
        self.modules()
        if not self._plain or not self._parameters.same(self._modules):
            self._all = dict(self._model.named_parameters())
            self._parameters.remember(self._modules)
        return {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}


def _walked_by_torch(module: nn.Module) -> bool:
    """Whether a module lists its contents by torch's own methods; others may answer differently at every call."""
    kind = type(module)
    return (
        kind.named_modules is nn.Module.named_modules
        and kind.named_parameters is nn.Module.named_parameters
        and kind._named_members is nn.Module._named_members
    )


class Tables:
    """The contents of one table of each of some modules.

    Args:
        name: the attribute that holds the table.
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
        # `is_` and not `==`: comparing tensors by value would return tensors, and a replaced parameter must be
        # noticed though its numbers are the same. The loop runs in C, since it runs over all modules at every step.
        return list(map(list, tables)) == self._keys and all(
            map(is_, chain.from_iterable([table.values() for table in tables]), self._values)
        )
