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
from functools import cached_property
from itertools import chain
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
        self._modules: list[nn.Module] = []
        self._attributes: list[dict[str, Any]] = []
        self._places: list[Place] = []
        self._lengths: list[int] = []
        self._contents: list[Any] = []
        """Of all places, one after the other."""
        self._list: list[tuple[str, Kept]] = []

    def now(self) -> list[tuple[str, Kept]]:
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


# ---- whether it changed --------------------------------------------------------------------------------------

WHOLE_STEPS = 3
"""Steps at the beginning in which every byte is read."""
ONE_IN = 32
"""Later, of a large parameter one page in so many is read, beginning with a random one: a write that covers so many is
always seen, a smaller one with this chance in each step. Buffers and attributes, where forwards keep things, are read
whole."""
READ_ALWAYS = 2**28
"""Bytes of a model that are read at every later step; of a larger one a random part of about this size."""

WORD = 8
PAGE = 512
"""Words that are read or left out together."""
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
        before_forward: called at every forward, of the model or of any part of it that has parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        in_public: Callable[[], bool],
        batch_waits: Callable[[], bool],
        before_forward: Callable[[], None],
    ) -> None:
        self._model, self._in_public, self._batch_waits = model, in_public, batch_waits
        self._before_forward = before_forward
        self._holdings = Holdings(model)
        self._before: dict[str, Mark] | None = None
        self._last: dict[str, Mark] = {}
        self._kept_so_far: set[str] = set()
        self._steps = 0
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
            if _changed(self._before.get(name), thing, read_bytes=read_bytes):
                raise ValueError(_message(name))

    def released(self) -> None:
        """The step is over."""
        self._before = None
        self._steps += 1

    # ---- the first forward of a step ------------------------------------------------------------------------

    def _begin(self) -> None:
        self._before_forward()
        if self._before is None and self._is_private():
            self._before = self._last = self._marks(self._holdings.now())

    def _is_private(self) -> bool:
        return torch.is_grad_enabled() and not self._in_public() and self._batch_waits()

    def _marks(self, things: list[tuple[str, Kept]]) -> dict[str, Mark]:
        if self._steps < WHOLE_STEPS:
            return {name: mark(thing, before=self._last.get(name)) for name, thing in things}
        page = _anyone.randrange(ONE_IN)
        total = sum(thing.nbytes // (ONE_IN if _is_parameter(name) else 1) for name, thing in things)
        share = min(1.0, READ_ALWAYS / max(total, 1))
        return {
            name: mark(
                thing,
                read=share == 1.0 or _anyone.random() < share,
                page=page if _is_parameter(name) else None,
                before=self._last.get(name),
            )
            for name, thing in things
        }

    # ---- public forwards ------------------------------------------------------------------------------------

    def _begin_public(self, *_: Any) -> None:
        marks = self._before
        if marks is not None and self._in_public():
            things = self._not_trained()
            self._kept_so_far = {n for n, thing in things if _changed(marks.get(n), thing, read_bytes=True)}

    def _end_public(self, *_: Any) -> None:
        """Whatever no private forward had changed before it may be what the public one made of it."""
        if self._before is not None and self._in_public():
            for name, thing in self._not_trained():
                if name not in self._kept_so_far:
                    self._before[name] = mark(thing)

    def _not_trained(self) -> Iterator[tuple[str, Kept]]:
        return ((name, thing) for name, thing in self._holdings.now() if not _is_parameter(name))


def _changed(before: Mark | None, thing: Kept, *, read_bytes: bool) -> bool:
    return before is None or not before.same(thing, bytes_too=read_bytes)


def _is_parameter(name: str) -> bool:
    return name.startswith("parameter")


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )


@dataclass(frozen=True, eq=False)
class Bytes:
    """The bytes of something in memory: 8-byte words, and what is left. Short ones are all rest."""

    pointer: int
    size: int
    words: NDArray[np.int64]
    rest: memoryview

    @cached_property
    def _halves(self) -> tuple[NDArray[np.int64], ...]:
        half = len(self.words) // 2
        return (self.words[:half], self.words[half:]) if half else ()

    @cached_property
    def _pages(self) -> int:
        return len(self.words) // PAGE

    def checksum(self, page: int | None) -> tuple[int, ...]:
        """Σ of the words of each half, modulo 2⁶⁴, and the CRC of the rest.

        One changed element always shows. Two sums, since a queue that is rolled along keeps the sum of the whole.

        Args:
            page: of long ones, read one page in `ONE_IN` only, beginning with this one; None: all of them.
        """
        return *[int(np.add.reduce(part, axis=None)) for part in self._parts(page)], zlib.crc32(self.rest)

    def _parts(self, page: int | None) -> tuple[NDArray[np.int64], ...]:
        if page is None or self._pages < 2 * ONE_IN:
            return self._halves
        whole = self._pages * PAGE
        return self.words[:whole].reshape(-1, PAGE)[page::ONE_IN], self.words[whole:]

    def of(self, thing: Kept) -> bool:
        """Whether these are still the bytes of a contiguous tensor."""
        return isinstance(thing, Tensor) and thing.data_ptr() == self.pointer and thing.nbytes == self.size


@dataclass(slots=True, eq=False)
class Mark:
    """What is remembered of a tensor. The thing itself is held, so that no other can have its identity.

    Args:
        version: how often torch saw it written to; such writes are seen whatever values they wrote. None where torch
            does not count.
        checksum: of its bytes; None where they were not read.
        page: the first page that was read of a long one; None: all.
        place: where they lie, if it can be read again without asking torch for it.
    """

    thing: Kept
    version: int | None
    checksum: tuple[int, ...] | None
    page: int | None
    place: Bytes | None

    def same(self, now: Kept, *, bytes_too: bool) -> bool:
        """Whether it is the same object, with the same version and, if they were read before, the same bytes."""
        if now is not self.thing or (self.version is not None and now._version != self.version):  # type: ignore[union-attr]
            return False
        return not bytes_too or self.checksum is None or checksum(now, self.place, self.page) == self.checksum


def mark(thing: Kept, *, read: bool = True, page: int | None = None, before: Mark | None = None) -> Mark:
    """The mark of a thing.

    Args:
        read: whether its bytes are read too, from which page on if not all.
        before: an earlier one, which may know where the bytes lie.
    """
    place = before.place if before is not None and before.thing is thing else None
    if not read:
        return Mark(thing, version(thing), None, page, place)
    if place is None or not place.of(thing):
        place = _in_place(thing)
    found = checksum(thing, None, page) if place is None else place.checksum(page)
    return Mark(thing, version(thing), found, page, place)


def version(thing: Kept) -> int | None:
    return thing._version if isinstance(thing, Tensor) and not thing.is_inference() else None


def checksum(thing: Kept, place: Bytes | None = None, page: int | None = None) -> tuple[int, ...]:
    """Of the bytes, which lie at `place` if that is still theirs."""
    if place is not None and place.of(thing):
        return place.checksum(page)
    if isinstance(thing, Tensor) and thing.device.type != "cpu":
        return _on_device(thing)
    return _bytes(thing).checksum(page)


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
    return Bytes(raw.ctypes.data, len(raw), words, raw[len(words) * WORD :].data)


def _on_device(thing: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(thing).view(same_size[min(thing.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(thing: Tensor) -> Tensor:
    return thing.detach().contiguous().reshape(-1)
