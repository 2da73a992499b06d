"""A model may change by releases only: what a forward writes into it is private data without noise.

Watched is everything it holds that a checkpoint could carry away: parameters, buffers, tensors in plain attributes.
Whether a tensor changed is told by what torch counts, and by its bytes, which also `.data` and numpy write to.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.call import Hook

# ---- what a model holds --------------------------------------------------------------------------------------

Kept = Tensor | NDArray[np.generic]

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


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


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
            self._places = [(p, tuple(p)) for _, attributes in self._modules for p in _may_change(attributes)]
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


# ---- whether it changed --------------------------------------------------------------------------------------

READ_ALWAYS = 2**28
"""Bytes of a model that are read at every step; of a larger one a random part of about this size; all at the first."""

WORD = 8
SHORT = 1024
"""Bytes up to which a CRC is as fast as two sums."""

_anyone = random.SystemRandom()


class ModelStateGuard:
    """Remembers the model at the first forward of a step and refuses a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. A public forward may change buffers and attributes.

    Args:
        model: all of its parameters, buffers and attributes that hold tensors.
        in_public: whether the forward under way is one of public losses.
        batch_waits: whether a batch is under way; forwards before it see no private record.
    """

    def __init__(
        self, model: nn.Module, in_public: Callable[[], bool], batch_waits: Callable[[], bool]
    ) -> None:
        self._model, self._in_public, self._batch_waits = model, in_public, batch_waits
        self._holdings = Holdings(model)
        self._before: dict[str, Mark] | None = None
        self._last: dict[str, Mark] = {}
        self._kept_so_far: set[str] = set()
        self._first = True
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Watch for the first forward of a step, of the model or of any part of it that has parameters."""
        for module in self._model.modules():
            if module is self._model or module._parameters:
                self._handles.append(module.register_forward_pre_hook(Hook(lambda *_: self._begin())))
        self._handles.append(self._model.register_forward_pre_hook(Hook(self._begin_public)))
        self._handles.append(self._model.register_forward_hook(Hook(self._end_public)))

    def detach(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before, self._last = None, {}

    def check(self, *, read_bytes: bool) -> None:
        """Refuse what was kept since the first forward of this step.

        Args:
            read_bytes: also look for writes that torch does not count.

        Raises:
            ValueError: something changed, or is new.
        """
        if self._before is None:
            return
        for name, thing in self._holdings.now():
            if self._changed(name, thing, read_bytes=read_bytes):
                raise ValueError(_message(name))

    def _changed(self, name: str, thing: Kept, *, read_bytes: bool = True) -> bool:
        before = None if self._before is None else self._before.get(name)
        return before is None or not before.same(thing, bytes_too=read_bytes)

    def released(self) -> None:
        """The step is over."""
        self._before = None
        self._first = False

    # ---- the first forward of a step ------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._before is not None or not torch.is_grad_enabled() or self._in_public():
            return
        if self._batch_waits():
            self._before = self._last = self._marks(self._holdings.now())

    def _marks(self, things: list[tuple[str, Kept]]) -> dict[str, Mark]:
        total = sum(thing.nbytes for _, thing in things)
        share = 1.0 if self._first else min(1.0, READ_ALWAYS / max(total, 1))
        return {
            name: mark(thing, read=share == 1.0 or _anyone.random() < share, before=self._last.get(name))
            for name, thing in things
        }

    # ---- public forwards ------------------------------------------------------------------------------------

    def _begin_public(self, *_: Any) -> None:
        if self._before is not None and self._in_public():
            self._kept_so_far = {name for name, thing in self._not_trained() if self._changed(name, thing)}

    def _end_public(self, *_: Any) -> None:
        """Whatever no private forward had changed before it may be what the public one made of it."""
        if self._before is not None and self._in_public():
            for name, thing in self._not_trained():
                if name not in self._kept_so_far:
                    self._before[name] = mark(thing, read=True)

    def _not_trained(self) -> Iterator[tuple[str, Kept]]:
        return ((name, thing) for name, thing in self._holdings.now() if not name.startswith("parameter"))


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )


@dataclass(frozen=True, eq=False)
class Bytes:
    """The bytes of something in memory: two halves of 8-byte words, and what is left. Short ones are all rest."""

    pointer: int
    size: int
    halves: tuple[NDArray[np.int64], ...]
    rest: memoryview

    def checksum(self) -> tuple[int, ...]:
        """Σ of the words of each half, modulo 2⁶⁴, and the CRC of the rest.

        One changed element always shows. Two sums, since a queue that is rolled along keeps the sum of the whole.
        """
        return *(int(np.add.reduce(half)) for half in self.halves), zlib.crc32(self.rest)

    def of(self, thing: Kept) -> bool:
        """Whether these are still the bytes of a contiguous tensor."""
        return isinstance(thing, Tensor) and thing.data_ptr() == self.pointer and thing.nbytes == self.size


@dataclass(frozen=True)
class Mark:
    """What is remembered of a tensor. The thing itself is held, so that no other can have its identity.

    Args:
        version: how often torch saw it written to; such writes are seen whatever values they wrote.
        checksum: of its bytes; None where they were not read.
        place: where they lie, if it can be read again without asking torch for it.
    """

    thing: Kept
    version: int
    checksum: tuple[int, ...] | None
    place: Bytes | None

    def same(self, now: Kept, *, bytes_too: bool) -> bool:
        """Whether it is the same object, with the same version and, if they were read before, the same bytes."""
        if now is not self.thing or version(now) != self.version:
            return False
        return not bytes_too or self.checksum is None or checksum(now, self.place) == self.checksum


def mark(thing: Kept, *, read: bool, before: Mark | None = None) -> Mark:
    """The mark of a thing.

    Args:
        before: an earlier one, which may know where the bytes lie.
    """
    place = before.place if before is not None and before.thing is thing else None
    if read and (place is None or not place.of(thing)):
        place = _in_place(thing)
    return Mark(thing, version(thing), checksum(thing, place) if read else None, place)


def version(thing: Kept) -> int:
    counted = isinstance(thing, Tensor) and not thing.is_inference()
    return thing._version if counted else 0  # type: ignore[union-attr]


def checksum(thing: Kept, place: Bytes | None = None) -> tuple[int, ...]:
    """Of all bytes, which lie at `place` if that is still theirs."""
    if place is not None and place.of(thing):
        return place.checksum()
    if isinstance(thing, Tensor) and thing.device.type != "cpu":
        return _on_device(thing)
    return _bytes(thing).checksum()


def _in_place(thing: Kept) -> Bytes | None:
    """Where the bytes of a tensor lie; None if reading them takes a copy."""
    there = isinstance(thing, Tensor) and thing.device.type == "cpu" and thing.is_contiguous()
    return _bytes(thing) if there else None


def _bytes(thing: Kept) -> Bytes:
    if isinstance(thing, Tensor):
        raw: NDArray[np.uint8] = _flat(thing).view(torch.uint8).numpy()
    else:
        raw = np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
    words = raw[: 0 if len(raw) < SHORT else len(raw) // WORD * WORD].view(np.int64)
    half = len(words) // 2
    halves = (words[:half], words[half:]) if half else ()
    return Bytes(raw.ctypes.data, len(raw), halves, raw[len(words) * WORD :].data)


def _on_device(thing: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(thing).view(same_size[min(thing.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(thing: Tensor) -> Tensor:
    return thing.detach().contiguous().reshape(-1)
