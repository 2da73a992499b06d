"""A model may change by releases only: what a forward writes into it is private data without noise.

Watched is everything it holds that a checkpoint could carry away: parameters, buffers, tensors in plain attributes.
Whether a tensor changed is told by what torch counts, and by its bytes, which also `.data` and numpy write to.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping
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

from quietgrad._capture.call import Hook

# ---- what a model holds --------------------------------------------------------------------------------------

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


# ---- whether it changed --------------------------------------------------------------------------------------

LOG_ONE_IN = 5
ONE_IN = 1 << LOG_ONE_IN
"""Of a large parameter one page in so many may be read, beginning with a random one: a write that covers so many is
always seen, a smaller one with this chance in each step. Buffers and attributes, where forwards keep things, are read
whole."""

WORD = 8
PAGE = 512
"""Words that are read or left out together."""
COPIED = 1 << 16
"""Bytes up to which a copy is taken: it is as fast as sums, and nothing that was written can hide in it."""

Form = tuple[Any, ...]
"""Precision, shape and strides."""

Checksum = bytes | tuple[int, ...]
"""The bytes themselves, or what stands for them."""


@dataclass(frozen=True, eq=False)
class Bytes:
    """The bytes of something in memory: all of them, and as 8-byte words with what is left."""

    pointer: int
    size: int
    whole: memoryview
    words: NDArray[np.int64]
    rest: memoryview

    @cached_property
    def _halves(self) -> tuple[NDArray[np.int64], ...]:
        half = len(self.words) // 2
        return self.words[:half], self.words[half:]

    @cached_property
    def _pages(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The words page by page, and those behind the last; None of short ones."""
        whole = len(self.words) // PAGE * PAGE
        return (
            None if whole < 2 * ONE_IN * PAGE else (self.words[:whole].reshape(-1, PAGE), self.words[whole:])
        )

    def checksum(self, page: int | None) -> Checksum:
        """A copy of short ones; Σ of the words of each half, modulo 2⁶⁴, and the CRC of the rest of others.

        One changed element always shows. Two sums, since a queue that is rolled along keeps the sum of the whole.

        Args:
            page: of long ones, read one page in `ONE_IN` only, beginning with this one; None: all of them.
        """
        if self.size <= COPIED:
            return self.whole.tobytes()
        return *[int(np.add.reduce(part, axis=None)) for part in self._parts(page)], zlib.crc32(self.rest)

    def _parts(self, page: int | None) -> tuple[NDArray[np.int64], ...]:
        if page is None or self._pages is None:
            return self._halves
        pages, rest = self._pages
        return pages[page::ONE_IN], rest

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
        form: how they are read: `x.data = x.data.t()` counts as no write, and leaves every byte as it was.
    """

    thing: Kept
    version: int | None
    checksum: Checksum | None
    page: int | None
    place: Bytes | None
    form: Form

    def same(self, now: Kept, *, bytes_too: bool) -> bool:
        """Whether it is the same object, with the same version, form and, if they were read before, bytes."""
        if bytes_too and form(now) != self.form:
            return False
        if now is not self.thing or (self.version is not None and now._version != self.version):  # type: ignore[union-attr]
            return False
        return not bytes_too or self.checksum is None or checksum(now, self.place, self.page) == self.checksum


def mark(thing: Kept, *, read: bool = True, page: int | None = None) -> Mark:
    """The mark of a thing.

    Args:
        read: whether its bytes are read too, from which page on if not all.
    """
    place = in_place(thing) if read else None
    return Mark(
        thing, version(thing), checksum(thing, place, page) if read else None, page, place, form(thing)
    )


def form(thing: Kept) -> Form:
    """What numbers are made of the bytes."""
    if isinstance(thing, Tensor):
        return thing.dtype, thing.shape, thing.stride() if thing.layout is torch.strided else thing.layout
    return thing.dtype, thing.shape, thing.strides


def version(thing: Kept) -> int | None:
    return thing._version if isinstance(thing, Tensor) and not thing.is_inference() else None


def checksum(thing: Kept, place: Bytes | None = None, page: int | None = None) -> Checksum:
    """Of the bytes, which lie at `place` if that is still theirs."""
    if place is not None and place.of(thing):
        return place.checksum(page)
    if isinstance(thing, Tensor) and thing.device.type != "cpu":
        return _on_device(thing)
    return _bytes(thing).checksum(page)


def in_place(thing: Kept) -> Bytes | None:
    """Where the bytes of a tensor lie; None if reading them takes a copy."""
    there = isinstance(thing, Tensor) and thing.device.type == "cpu" and thing.is_contiguous()
    return _bytes(thing) if there else None


def _bytes(thing: Kept) -> Bytes:
    if isinstance(thing, Tensor):
        raw: NDArray[np.uint8] = _flat(thing).view(torch.uint8).numpy()
    else:
        raw = np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
    words = raw[: len(raw) // WORD * WORD].view(np.int64)
    return Bytes(raw.ctypes.data, len(raw), raw.data, words, raw[len(words) * WORD :].data)


def _on_device(thing: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(thing).view(same_size[min(thing.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(thing: Tensor) -> Tensor:
    return thing.detach().contiguous().reshape(-1)


# ---- all things ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shelved:
    """A tensor that torch counts writes to, and where its bytes lie."""

    name: str
    tensor: Tensor
    place: Bytes
    paged: bool
    """Whether it may be read in part."""


class Shelf:
    """The things of one list, and where the bytes of each lie: found once, and read over and over.

    Args:
        things: those of `Holdings.now`, which gives the same list as long as no object in it was exchanged.
    """

    def __init__(self, things: Things) -> None:
        self.things = things
        self.shelved: list[Shelved] = []
        self.odd: Things = []
        """Those of which torch counts no writes, or whose bytes do not lie in one piece."""
        for name, thing in things:
            place = in_place(thing)
            if isinstance(thing, Tensor) and place is not None and not thing.is_inference():
                self.shelved.append(Shelved(name, thing, place, is_parameter(name)))
            else:
                self.odd.append((name, thing))
        self.load = sum(thing.nbytes // (ONE_IN if is_parameter(name) else 1) for name, thing in things)
        """Bytes to read where parameters are read in part."""
        self._tensors = [one.tensor for one in self.shelved]
        self._pointers = [one.place.pointer for one in self.shelved]
        self.forms = [form(one.tensor) for one in self.shelved]

    def in_place(self) -> bool:
        """Whether everything lies where it did, and is read from there as it was."""
        where, forms = [t.data_ptr() for t in self._tensors], [form(t) for t in self._tensors]
        return where == self._pointers and forms == self.forms

    def versions(self) -> list[int]:
        return [t._version for t in self._tensors]


class Snapshot:
    """What is remembered of everything that a model holds.

    Args:
        shelf: whose things lie where it says.
        page: of long parameters, the first page that is read; None: all are.
        chosen: the names of what is read; None: everything.
    """

    def __init__(self, shelf: Shelf, page: int | None = None, chosen: Container[str] | None = None) -> None:
        self._shelf, self._page = shelf, page
        self._read = [one for one in shelf.shelved if chosen is None or one.name in chosen]
        self._versions, self._sums = shelf.versions(), self._checksums()
        self._odd = {
            name: mark(
                thing, read=chosen is None or name in chosen, page=page if is_parameter(name) else None
            )
            for name, thing in shelf.odd
        }
        self._replaced = False

    def _checksums(self) -> list[Checksum]:
        page = self._page
        return [one.place.checksum(page if one.paged else None) for one in self._read]

    def same(self, things: Things, *, bytes_too: bool) -> bool:
        """Whether all is as it was, asked of all at once. If not, or if marks were replaced, each mark has to tell."""
        shelf = self._shelf
        return (
            things is shelf.things
            and not self._replaced
            and shelf.versions() == self._versions
            and (not bytes_too or (shelf.in_place() and self._checksums() == self._sums))
            and all(self._odd[name].same(thing, bytes_too=bytes_too) for name, thing in shelf.odd)
        )

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """Of each thing by its name."""
        sums = {one.name: found for one, found in zip(self._read, self._sums, strict=True)}
        return self._odd | {
            one.name: Mark(
                one.tensor, version, sums.get(one.name), self._page if one.paged else None, one.place, shape
            )
            for one, version, shape in zip(
                self._shelf.shelved, self._versions, self._shelf.forms, strict=True
            )
        }

    def replace(self, name: str, thing: Kept) -> None:
        """This thing may be what it is now."""
        self.marks[name], self._replaced = mark(thing), True


# ---- the guard -----------------------------------------------------------------------------------------------

WHOLE_STEPS = 3
"""Steps at the beginning in which every byte is read."""
READ_ALWAYS = 2**28
"""Bytes of a model that are read at every later step; of a larger one a random part of about this size."""

_anyone = random.SystemRandom()


class ModelStateGuard:
    """Remembers the model at the first forward of a step and refuses a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. A public forward may change buffers and attributes.

    Args:
        model: all of its parameters, buffers and attributes that hold tensors.
        in_public: whether the forward under way is one of public losses.
        batch_waits: whether a batch is under way; forwards before it see no private record.
        before_forward: called at every forward, of the model or of any part of it that has parameters, up to the one
            at which the model is remembered.
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
        self._before: Snapshot | None = None
        self._shelf: Shelf | None = None
        self._kept_so_far: set[str] = set()
        self._steps = 0
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Watch for the first forward of a step, of the model or of any part of it that has parameters."""
        for module in self._model.modules():
            if module is self._model or module._parameters:
                self._handles.append(module.register_forward_pre_hook(Hook(self._forward)))
        self._handles.append(self._model.register_forward_pre_hook(Hook(self._begin_public)))
        self._handles.append(self._model.register_forward_hook(Hook(self._end_public)))

    def detach(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before = self._shelf = None

    def check(self, *, read_bytes: bool) -> None:
        """Refuse what was kept since the first forward of this step.

        Args:
            read_bytes: also look for writes that torch does not count.

        Raises:
            ValueError: something changed, or is new.
        """
        if self._before is None:
            return
        things = self._holdings.now()
        if self._before.same(things, bytes_too=read_bytes):
            return
        for name, thing in things:
            if _changed(self._before.marks.get(name), thing, read_bytes=read_bytes):
                raise ValueError(_message(name))

    def released(self) -> None:
        """The step is over."""
        self._before = None
        self._steps += 1

    # ---- the first forward of a step ------------------------------------------------------------------------

    def _forward(self, *_: Any) -> None:
        # Once the model is remembered, `before_forward` was called in a forward with gradients of this very step.
        if self._before is None:
            self._begin()

    def _begin(self) -> None:
        self._before_forward()
        if self._is_private():
            self._before = self._snapshot(self._holdings.now())

    def _is_private(self) -> bool:
        return torch.is_grad_enabled() and not self._in_public() and self._batch_waits()

    def _snapshot(self, things: Things) -> Snapshot:
        shelf = self._shelf
        if shelf is None or shelf.things is not things or not shelf.in_place():
            shelf = self._shelf = Shelf(things)
        if self._steps < WHOLE_STEPS:
            return Snapshot(shelf)
        page, share = _anyone.getrandbits(LOG_ONE_IN), READ_ALWAYS / max(shelf.load, 1)
        chosen = None if share >= 1.0 else {name for name, _ in things if _anyone.random() < share}
        return Snapshot(shelf, page, chosen)

    # ---- public forwards ------------------------------------------------------------------------------------

    def _begin_public(self, *_: Any) -> None:
        if self._before is not None and self._in_public():
            marks = self._before.marks
            changed = {
                n for n, thing in self._not_trained() if _changed(marks.get(n), thing, read_bytes=True)
            }
            self._kept_so_far = changed

    def _end_public(self, *_: Any) -> None:
        """Whatever no private forward had changed before it may be what the public one made of it."""
        if self._before is not None and self._in_public():
            for name, thing in self._not_trained():
                if name not in self._kept_so_far:
                    self._before.replace(name, thing)

    def _not_trained(self) -> Iterator[tuple[str, Kept]]:
        return ((name, thing) for name, thing in self._holdings.now() if not is_parameter(name))


def _changed(before: Mark | None, thing: Kept, *, read_bytes: bool) -> bool:
    return before is None or not before.same(thing, bytes_too=read_bytes)


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )
