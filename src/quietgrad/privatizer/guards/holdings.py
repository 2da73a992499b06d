"""The list of what a model holds, made again only when something in it was exchanged."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from operator import is_
from typing import Any

from torch import nn

from quietgrad.privatizer.guards.fingerprint import Kept
from quietgrad.privatizer.guards.held import DEEPEST, OF_TORCH, PLAIN, held

WALKED = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks")
"""What torch keeps in a module and `held` reads."""

Place = Collection[Any]
"""A container, or the living view of a dictionary's values."""


class Holdings:
    """`held(model)`, remembered together with everything that was looked at on the way.

    A walk reads dozens of attributes of every module. The list is the same as long as each module and container on
    the way holds the very same objects, which is compared by identity and without calling anything of the user's.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[tuple[nn.Module, dict[str, Any]]] = []
        self._places: list[tuple[Place, tuple[Any, ...]]] = []
        self._list: list[tuple[str, Kept]] = []

    def now(self) -> list[tuple[str, Kept]]:
        """What the model holds; the same list as before if nothing was exchanged."""
        if not self._current:
            self._modules = [(module, vars(module)) for module in self._model.modules()]
            self._places = [(p, tuple(p)) for _, attributes in self._modules for p in _places(attributes)]
            self._list = list(held(self._model))
        return self._list

    @property
    def _current(self) -> bool:
        return (
            bool(self._modules)
            and all(vars(module) is attributes for module, attributes in self._modules)
            and all(
                len(place) == len(before) and all(map(is_, place, before)) for place, before in self._places
            )
        )


def _places(attributes: Mapping[str, Any]) -> Iterator[Place]:
    """Everything in a module that may come to hold something else."""
    yield attributes.values()
    yield from (attributes[name].values() for name in WALKED)
    for key, value in attributes.items():
        if key not in OF_TORCH and type(value) not in PLAIN:
            yield from _inside(value, DEEPEST)


def _inside(value: Any, depth: int) -> Iterator[Place]:
    if not depth or not isinstance(value, Mapping | list | tuple | deque | set):
        return
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, tuple):
        yield parts
    for part in parts:
        if type(part) not in PLAIN:
            yield from _inside(part, depth - 1)
