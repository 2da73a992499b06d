"""Everything in a model that a checkpoint could carry away: parameters, buffers, tensors in plain attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from quietgrad._capture.fsdp import shards_in

OF_TORCH = frozenset(
    vars(nn.Module())
)  # torch keeps these in every module, parameters and buffers among them
PLAIN = frozenset({int, float, bool, str, type(None)})
MOST_NESTED = 4  # so many lists and dictionaries inside each other are followed


class ModelTensor(NamedTuple):
    """A tensor or array in a model, with what it is ("buffer 'norm.mean'")."""

    name: str
    value: Tensor | NDArray[np.generic]
    is_parameter: bool = False


def model_tensors(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[ModelTensor]:
    """Yield every tensor and array of a model that does not follow from the weights alone.

    Args:
        modules: the model's modules with their names, as `named_modules` yields them.
    """
    modules = list(modules)
    shards = shards_in(module for _, module in modules)
    for prefix, module in modules:
        prefix = f"{prefix}." if prefix else ""
        derived = _derived_names(module)
        for key, parameter in module._parameters.items():
            if parameter is not None:
                value = shards.get((id(module), key), parameter) if shards else parameter
                yield ModelTensor(f"parameter {prefix + key!r}", value, True)
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in derived:
                yield ModelTensor(f"buffer {prefix + key!r}", buffer)
        attributes = vars(module)
        # The difference of sets runs in C: torch keeps two dozen attributes in each module, and none is looked at.
        for key in attributes.keys() - OF_TORCH:
            value = attributes[key]
            if not (_is_plain(value) or key in derived):
                yield from _inside(prefix + key, value, MOST_NESTED)


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a string or a tuple of them, in which no tensor can be."""
    kind = type(value)
    return kind in PLAIN or (kind is tuple and PLAIN.issuperset(map(type, value)))


def _inside(name: str, value: Any, depth: int) -> Iterator[ModelTensor]:
    if _is_plain(value) or isinstance(value, nn.Parameter):
        return  # a parameter is yielded by its module; recurrent layers list theirs once more
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.hasobject is False):
        yield ModelTensor(f"attribute {name!r}", value)
    elif depth and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _inside(f"{name}[{key!r}]", part, depth - 1)
    elif depth and isinstance(value, list | tuple | deque | set):
        for index, part in enumerate(value):
            yield from _inside(f"{name}[{index}]", part, depth - 1)


def _derived_names(module: nn.Module) -> set[str]:
    """Return what torch's own reparametrisations compute from the weights at every forward: no record is in it."""
    names = {"_u", "_v"} if isinstance(module, _SpectralNorm) else set()
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            names.add(hook.name)
        elif isinstance(hook, SpectralNorm):
            names |= {hook.name, hook.name + "_u", hook.name + "_v"}
        elif isinstance(hook, BasePruningMethod):
            names.add(hook._tensor_name)
    return names
