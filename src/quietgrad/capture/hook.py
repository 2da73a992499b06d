"""Hooks that stay behind when their module is copied or saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A hook for this model only: `copy.deepcopy(model)` and `torch.save(model)` get one that does nothing.

    Args:
        function: what to call, with whatever arguments the hook gets.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __deepcopy__(self, _: dict[int, Any]) -> Callable[..., None]:
        return idle

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _idle_hook, ()


def idle(*_: Any) -> None:
    """The hook of a copy."""


def _idle_hook() -> Callable[..., None]:
    return idle
