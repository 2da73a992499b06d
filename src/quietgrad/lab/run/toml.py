"""Writes plain data as TOML; the standard library only reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(document: Mapping[str, Any]) -> str:
    """Scalars first, then one table per mapping; nested mappings become inline tables."""
    scalars = [
        f"{key} = {_value(value)}" for key, value in document.items() if not isinstance(value, Mapping)
    ]
    tables = [
        "\n".join([f"[{key}]", *[f"{name} = {_value(item)}" for name, item in value.items()]])
        for key, value in document.items()
        if isinstance(value, Mapping)
    ]
    return "\n\n".join(["\n".join(scalars), *tables]).strip() + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)
