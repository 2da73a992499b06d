"""Everything a model holds that a checkpoint could carry away: parameters, buffers, tensors in plain attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from quietgrad.privatizer.guards.fingerprint import Kept

OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that torch itself keeps in every module; parameters and buffers are read from the model."""

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


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
