"""A mechanism as plain data: what a ledger keeps, a resume compares and a report prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


def describe(value: Any) -> Any:
    """Return a JSON-ready description of a frozen configuration object; callables appear by name.

    Two objects are taken for the same mechanism on resume exactly if their descriptions are equal.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    if callable(value):
        return _callable_name(value)
    raise TypeError(
        f"Cannot describe {type(value).__name__}: a mechanism holds numbers, strings, functions and dataclasses only. "
        f"Decorate class {type(value).__name__} with @dataclass(frozen=True)."
    )


def _callable_name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{function.__module__}.{name}"
