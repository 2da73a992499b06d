"""Signatures are promises: the shapes, dtypes and classes in them are checked at every call that a test makes.

To import this module before the library is enough. Every function is wrapped when its module is imported and handed to
beartype when it is called first, in a context of jaxtyping of its own, so that a letter means one size in one call.
jaxtyping's own hook decorates all of them twice at import and binds signatures at each call: twice the time in all.
`QUIETGRAD_ANNOTATIONS` says where: "laws" (the default) in tests marked `annotations`, and in tests/laws in the first
and last test of each function, layer and method; "all" in the first and last of every function; "0" nowhere.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, get_args, get_type_hints

import jaxtyping
import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype

PACKAGE = "quietgrad"
DECORATOR = "_promised"
"""The name under which a module of the package finds `promised`."""

DEVICE_CODE = f"{PACKAGE}._kernels.triton_code"
"""Functions that triton compiles from their source; they have no types of Python's."""

MODE = os.environ.get("QUIETGRAD_ANNOTATIONS", "laws")
assert MODE in ("laws", "all", "0"), f"Expected QUIETGRAD_ANNOTATIONS of laws, all or 0, got {MODE!r}."

NUMBERS: FrozenDict[object, object] = FrozenDict(
    {
        int: int | np.integer,
        float: float | int | np.integer | np.floating,
    }
)
"""As for a static checker an int passes for a float; numpy's numbers pass for Python's."""

checked = beartype(conf=BeartypeConf(hint_overrides=NUMBERS))

T = TypeVar("T")
_on = [MODE == "all"]
_local: set[CodeType] = set()
"""Functions made anew inside another, checked where they were made first: beartype takes a millisecond for each."""

_type_only: dict[str, list[tuple[str, str]]] = {}
"""Of each module, what it imports for a type checker alone: module and name."""


@contextmanager
def executed(*, on: bool) -> Iterator[None]:
    """Annotations of the library are executed, or not."""
    _on.append(on)
    try:
        yield
    finally:
        _on.pop()


def is_executed() -> bool:
    """Whether a call made now is checked."""
    return _on[-1]


def promised(what: T) -> T:
    """The function, or the dataclass's `__init__`, with its annotations executed."""
    if isinstance(what, type):
        if dataclasses.is_dataclass(what) and "__init__" in vars(what):
            setattr(what, "__init__", _function(vars(what)["__init__"]))  # noqa: B010
        return what
    assert isinstance(what, FunctionType), what
    return _function(what)  # type: ignore[return-value]


def _function(function: FunctionType) -> Callable[..., Any]:
    strict: Callable[..., Any] | None = None
    shaped = True

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal strict, shaped
        if not _on[-1] or (strict is None and function.__code__ in _local):
            return function(*args, **kwargs)
        if strict is None:
            # What beartype itself calls meanwhile (a hash, an attribute) it would wait for itself to check.
            with executed(on=False):
                copy = _resolved(function)
                strict, shaped = checked(copy), any(map(_is_shaped, copy.__annotations__.values()))
            if function.__closure__:
                _local.add(function.__code__)
        if not shaped:
            return strict(*args, **kwargs)
        with jaxtyping.jaxtyped("context"):
            return strict(*args, **kwargs)

    return call


def _is_shaped(hint: Any) -> bool:
    """Whether letters are in it, or perhaps: a name that is still a string."""
    array = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return array or isinstance(hint, str) or any(map(_is_shaped, get_args(hint)))


def _resolved(function: FunctionType) -> FunctionType:
    """A copy whose annotations are objects; those of the function itself stay what users' programs see."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    functools.update_wrapper(copy, function)
    del copy.__wrapped__  # type: ignore[attr-defined]
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, _hints(function)
    return copy


def _hints(function: FunctionType) -> dict[str, Any]:
    """Its annotations as objects, classes that only a type checker imports there included."""
    imports = _type_only.get(function.__module__, [])
    more = {name: getattr(importlib.import_module(module), name) for module, name in imports}
    try:
        return get_type_hints(function, localns=more, include_extras=True)
    except NameError:  # a class of the function around it, which beartype finds in that function's frame
        return function.__annotations__


class _Promises(ast.NodeTransformer):
    """Decorates: functions innermost, where their annotations are still theirs, and classes outermost."""

    def __init__(self) -> None:
        self.type_only: list[tuple[str, str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not any(isinstance(d, ast.Name) and d.id == "no_type_check" for d in node.decorator_list):
            node.decorator_list.append(_decorator(node))
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            imports = [line for line in node.body if isinstance(line, ast.ImportFrom)]
            self.type_only += [(str(line.module), alias.name) for line in imports for alias in line.names]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list.insert(0, _decorator(node))
        return self.generic_visit(node)


def _decorator(at: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(DECORATOR, ast.Load()), at)


class _Loader(SourceFileLoader):
    """Reads the source each time: the compiled files beside it are of the library as users have it."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        promises = _Promises()
        tree = promises.visit(ast.parse(self.get_data(path), path))
        _type_only[fullname] = promises.type_only
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[DECORATOR] = promised
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE or fullname.startswith(DEVICE_CODE):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


if MODE != "0":
    sys.meta_path.insert(0, _Finder())
