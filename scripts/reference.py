"""Examples in docstrings as code: the reference would show the lines of an `Example:` section as one paragraph."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^Example:\n((?:(?: {4}.*)?\n?)+)", flags=re.MULTILINE)


def with_code(docstring: str) -> str:
    """The docstring with its example fenced."""

    def fence(match: re.Match[str]) -> str:
        return f"Example:\n    ```python\n{match[1].rstrip()}\n    ```\n"

    return SECTION.sub(fence, docstring)


class Examples(griffe.Extension):
    """Fences the example of everything that has one."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each object, before its docstring is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_code(obj.docstring.value)
