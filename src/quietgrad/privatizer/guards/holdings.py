"""What a model holds that a checkpoint could carry away: parameters, buffers, tensors in plain attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

Kept = Tensor | NDArray[np.generic]
Things = list[tuple[str, Kept]]
"""What each is and its name, and the tensor or array."""

OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that torch itself keeps in every module; parameters and buffers are read from the model."""

WALKED = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks")
"""What torch keeps in a module and `held` reads."""

Place = Collection[Any]
"""A container, or the living view of a dictionary's values."""

PLAIN = frozenset({int, float, bool, str, type(None)})
DEEPEST = 4
"""How far lists and dictionaries inside each other are followed."""


def held(model: nn.Module) -> Iterator[tuple[str, Kept]]:
    """(what it is and its name, the tensor or array), for all that does not follow from the weights alone."""
    for prefix, module in model.named_modules():
        derived = _derived(module)
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield f"parameter {_joined(prefix, key)!r}", parameter
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in derived:
                yield f"buffer {_joined(prefix, key)!r}", buffer
        attributes = vars(module)
        for key in attributes.keys() - OF_TORCH:
            if type(attributes[key]) not in PLAIN and key not in derived:
                yield from _inside(_joined(prefix, key), attributes[key], DEEPEST)


def _inside(name: str, value: Any, depth: int) -> Iterator[tuple[str, Kept]]:
    if isinstance(value, nn.Parameter):
        return  # named above; recurrent layers list theirs once more
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.hasobject is False):
        yield f"attribute {name!r}", value
    elif depth and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _inside(f"{name}[{key!r}]", part, depth - 1)
    elif depth and isinstance(value, list | tuple | deque | set):
        for index, part in enumerate(value):
            if type(part) not in PLAIN:
                yield from _inside(f"{name}[{index}]", part, depth - 1)


def _derived(module: nn.Module) -> set[str]:
    """What torch's own reparametrisations compute from the weights at every forward: it has seen no record."""
    names = {"_u", "_v"} if isinstance(module, _SpectralNorm) else set()
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            names.add(hook.name)
        elif isinstance(hook, SpectralNorm):
            names |= {hook.name, hook.name + "_u", hook.name + "_v"}
        elif isinstance(hook, BasePruningMethod):
            names.add(hook._tensor_name)
    return names


def is_parameter(name: str) -> bool:
    """Whether `held` calls it one."""
    return name.startswith("parameter")


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class Holdings:
    """`held(model)`, remembered together with everything that was looked at on the way.

    A walk reads dozens of attributes of every module. The list is the same as long as each module and container on
    the way holds the very same objects, which is compared by identity and without calling anything of the user's.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._attributes: list[dict[str, Any]] = []
        self._places: list[Place] = []
        self._lengths: list[int] = []
        self._contents: list[Any] = []
        """Of all places, one after the other."""
        self._list: Things = []

    def now(self) -> Things:
        """What the model holds; the same list as before if nothing was exchanged."""
        if not self._current:
            self._modules = list(self._model.modules())
            self._attributes = [vars(module) for module in self._modules]
            self._places = [place for attributes in self._attributes for place in _may_change(attributes)]
            self._lengths = [len(place) for place in self._places]
            self._contents = list(chain.from_iterable(self._places))
            self._list = list(held(self._model))
        return self._list

    @property
    def _current(self) -> bool:
        return (
            bool(self._modules)
            and all(map(is_, map(vars, self._modules), self._attributes))
            and list(map(len, self._places)) == self._lengths
            and all(map(is_, chain.from_iterable(self._places), self._contents))
        )


def _may_change(attributes: Mapping[str, Any]) -> Iterator[Place]:
    """Everything in a module that may come to hold something else."""
    yield attributes.values()
    yield from (attributes[name].values() for name in WALKED)
    for key, value in attributes.items():
        if key not in OF_TORCH and type(value) not in PLAIN:
            yield from _containers(value, DEEPEST)


def _containers(value: Any, depth: int) -> Iterator[Place]:
    if not depth or not isinstance(value, Mapping | list | tuple | deque | set):
        return
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, tuple):
        yield parts
    for part in parts:
        if type(part) not in PLAIN:
            yield from _containers(part, depth - 1)
