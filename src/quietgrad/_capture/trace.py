"""Everything that is computed between a micro-batch and its losses, so that it can be computed again with other rows.

A function mode notes each torch function that is called, with its arguments; a call of the model is noted as one.
Python code in between is not run again: numbers that it read off tensors stay what they were, except for the size of
the batch, which is handed out as a number that remembers what it is (`Count`), through all arithmetic.

Python makes a plain number of whatever `__len__` returns, which could then only be known by its value: a constant that
happens to be the size of the batch would be taken for it. So while a micro-batch is followed, `len` itself is another
function, in the thread that follows it.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

# ---- sizes that remember what they are -----------------------------------------------------------------------


class Count(int):
    """An integer computed from the number of rows; `other` is what it would be with one row more."""

    other: int

    def __new__(cls, value: int, other: int) -> Count:
        count = super().__new__(cls, value)
        count.other = other
        return count


class FloatCount(float):
    """The same, not whole."""

    other: float

    def __new__(cls, value: float, other: float) -> FloatCount:
        count = super().__new__(cls, value)
        count.other = other
        return count


def _remembering(operation: Callable[[Any, Any], Any], *, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Count | FloatCount, with_: Any) -> Any:
        if not isinstance(with_, int | float):
            return NotImplemented
        mine, theirs = (_plain(self), self.other), (_plain(with_), getattr(with_, "other", with_))
        pairs = [(theirs[i], mine[i]) if swapped else (mine[i], theirs[i]) for i in (0, 1)]
        try:
            value, other = (operation(*pair) for pair in pairs)
        except ZeroDivisionError:
            value = other = operation(*pairs[0])
        return Count(value, other) if isinstance(value, int) else FloatCount(value, other)

    return method


def _plain(value: float) -> float:
    return int(value) if isinstance(value, int) else float(value)


for _kind in (Count, FloatCount):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod"):
        setattr(_kind, f"__{_name}__", _remembering(getattr(operator, _name), swapped=False))
        setattr(_kind, f"__r{_name}__", _remembering(getattr(operator, _name), swapped=True))


Counter = Callable[[object], Count | None]
"""The number of rows of a thing; None if it is not its business."""

_builtin = builtins.len
_watching: list[tuple[int, Counter]] = []
_lock = threading.Lock()
_asked = threading.local()


def watch_lengths(counter: Counter) -> None:
    """Ask this counter first, in this thread, until it is forgotten."""
    with _lock:
        _watching.append((threading.get_ident(), counter))
        builtins.len = _counting


def forget_lengths(counter: Counter) -> None:
    """Do not ask it any more; the last one leaves everything as it was."""
    with _lock:
        _watching[:] = [(thread, other) for thread, other in _watching if other != counter]
        if not _watching:
            builtins.len = _builtin


@no_type_check  # what checks annotations takes lengths itself
def _counting(obj: Sized, /) -> int:
    length = _builtin(obj)
    if getattr(_asked, "now", False):  # a length that a counter takes is none of the model's
        return length
    mine = threading.get_ident()
    _asked.now = True
    try:
        counts = [counter(obj) for thread, counter in tuple(_watching) if thread == mine]
    finally:
        _asked.now = False
    return next((count for count in counts if count is not None), length)


# ---- what was called -----------------------------------------------------------------------------------------

ARITHMETIC = frozenset(
    f"{before}{name}{after}"
    for name in (
        "add",
        "sub",
        "mul",
        "div",
        "truediv",
        "true_divide",
        "floordiv",
        "pow",
        "divide",
        "multiply",
        "lerp",
    )
    for before, after in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
)
"""Functions in which the size of a batch is a value; elsewhere (`view`, `arange`) it is a shape."""

ALL_NUMBERS = ("numel", "nelement")
SIZES = ("size", "__get__", *ALL_NUMBERS)
"""`x.size()`, `x.numel()` and the property `x.shape`; `len(x)` is counted by `watch_lengths`."""

GIVING_UP = ("backward", "grad", "set_", "requires_grad_", "retain_grad", "register_hook")
"""What cannot be done twice."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One call: what was called with which arguments, and the tensors that it gave."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[Tensor]
    name: str


class Trace(TorchFunctionMode):
    """Notes calls while it is on; `close` ends it.

    Args:
        rows: the micro-batch, or the model's arguments if nothing is known of one.
        n: its number of rows; 0 if that will only be known by the losses.
    """

    def __init__(self, rows: Any, n: int) -> None:
        super().__init__()
        self.n, self._rows = n, rows
        self.entries: list[Entry] = []
        self.broken: str | None = None
        self.rng = torch.get_rng_state()
        self._open = self._closed = self._away = False
        self._depth = 0
        self._sized = {id(leaf) for leaf in tensors(rows) if leaf.dim() and len(leaf) == n}

    def records(self, n: int) -> list[tuple[Tensor, int]]:
        """The tensors with one slice for each row, and the dimension of the slices: the first that has the size."""
        fitting = [(x, x.shape.index(n)) for x in tensors(self._rows) if n in x.shape and not _offsets(x)]
        if not self.n and any(map(_offsets, tensors(self._rows))):
            return []
        return [(x, dim) for x, dim in fitting if dim == 0 or not self.n]

    def unclear(self, n: int) -> bool:
        """Whether another dimension of a model's arguments may hold the samples as well."""
        return not self.n and any(list(x.shape).count(n) > 1 for x, _ in self.records(n))

    def open(self) -> None:
        self._open = True
        watch_lengths(self.length)
        self.__enter__()

    def close(self) -> None:
        """Stop noting; leave the stack of modes unless another mode lies on top, which a later `close` sees gone."""
        self._closed = True
        forget_lengths(self.length)
        self._leave()

    def _leave(self) -> bool:
        if not self._open or torch.overrides._get_current_function_mode() is not self:
            return False
        self._open = False
        self.__exit__(None, None, None)
        return True

    def length(self, thing: Any) -> Count | None:
        """What `len` gives of a tensor with one slice for each row."""
        return Count(self.n, self.n + 1) if not self._idle and id(thing) in self._sized else None

    def pause(self) -> None:
        """The model is called, or public data comes between: what happens there is not noted, nor seen if possible
        (a compiled part would be compiled with this mode in it)."""
        self._depth += 1
        if self._leave():
            self._away = True

    def resume(self, entry: Entry | None = None) -> None:
        """It has ended; `entry` is the call as a whole."""
        self._depth -= 1
        if self._away and self._depth == 0 and not self._closed:
            self._open, self._away = True, False
            self.__enter__()
        if entry is not None and not self._idle:
            self._keep(entry)

    @property
    def _idle(self) -> bool:
        return self._closed or self._depth > 0 or self.broken is not None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._idle:
            return result
        name = getattr(func, "__name__", "")
        if name in GIVING_UP:
            self.broken = f"{name} was called before the losses were handed over"
        elif name in SIZES and args and id(args[0]) in self._sized:
            return _counted(result, self.n, args[1:], name)
        self._keep(Entry(func, args, kwargs, tensors(result), name))
        return result

    def _keep(self, entry: Entry) -> None:
        if entry.results or changes_in_place(entry.name):
            self.entries.append(entry)
            self._sized.update(id(t) for t in entry.results if t.dim() and len(t) == self.n)


def _offsets(x: Tensor) -> bool:
    """Whether a tensor may say where each bag begins: such numbers belong to no single record."""
    if x.dim() != 1 or x.is_floating_point() or x.dtype == torch.bool or len(x) == 0 or x[0] != 0:
        return False
    return bool((x.diff() >= 0).all())


def changes_in_place(name: str) -> bool:
    return name in ("__setitem__", "__iadd__") or (name.endswith("_") and not name.endswith("__"))


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _counted(result: Any, n: int, dims: tuple[Any, ...], name: str) -> Any:
    """The first dimension as a number that remembers what it counts."""
    if isinstance(result, torch.Size):
        return torch.Size([Count(n, n + 1), *result[1:]])
    if name in ALL_NUMBERS and n > 0:
        return Count(result, result // n * (n + 1))
    return Count(n, n + 1) if type(result) is int and dims == (0,) else result


@dataclass(frozen=True)
class Rerun:
    """What a trace computes when some of its tensors are others.

    Args:
        replaced: id of a record's tensor → what stands in for it.
        counts: whether the batch is taken to have one row more.
    """

    trace: Trace
    replaced: dict[int, Tensor]
    counts: bool

    def result(self, wanted: Tensor) -> Tensor:
        """The tensor that takes the place of `wanted`."""
        values: dict[int, Tensor] = dict(self.replaced)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _stock_attention():
            torch.set_rng_state(self.trace.rng)
            for entry in self.trace.entries:
                self._again(entry, values)
        return values[id(wanted)]

    def _again(self, entry: Entry, values: dict[int, Tensor]) -> None:
        if changes_in_place(entry.name):
            for target in tensors(entry.args[:1]):
                values.setdefault(id(target), target.detach().clone())
        arithmetic = self.counts and entry.name in ARITHMETIC

        def current(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return values.get(id(leaf), leaf)
            return leaf.other if arithmetic and isinstance(leaf, Count | FloatCount) else leaf

        args, kwargs = pytree.tree_map(current, (entry.args, entry.kwargs))
        found = tensors(entry.function(*args, **kwargs))
        values.update({id(old): new for old, new in zip(entry.results, found, strict=True)})


def is_size(number: Any, n: int) -> bool:
    """Whether a number is the size of the batch, or one over it; that of one row tells nothing."""
    return n > 1 and isinstance(number, int | float) and not isinstance(number, bool) and number in (n, 1 / n)


@contextlib.contextmanager
def _stock_attention() -> Iterator[None]:
    """Without gradients attention would take a kernel that rounds differently."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
