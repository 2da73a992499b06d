"""quietgrad: train PyTorch models with differential privacy, with more signal per ε.

`quietgrad._names` lists the public names. They and torch are imported when a name is first used, so that commands
which compute nothing answer at once. Packages with a leading underscore are internal.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

__version__ = "0.2.0"

if _TYPE_CHECKING:
    from quietgrad._names import *  # noqa: F403
    from quietgrad._names import __all__ as __all__
else:
    _MODULES = frozenset(
        ("accounting", "audit", "distributed", "federated", "methods", "public_losses", "rules", "schedules")
    )
    _OF_0_2 = frozenset(("capture", "gradients", "program"))
    """Modules that 0.2 exported; each warns when it is imported, and leaves in 0.4."""

    def __getattr__(name: str) -> _Any:
        """Import a public module, or all public names at once."""
        if name in _MODULES or name in _OF_0_2:
            return _import_module(f"quietgrad.{name}")
        if name == "__all__" or not name.startswith("_"):  # tools look for names like __wrapped__
            names = _import_module("quietgrad._names")
            globals().update(
                {public: getattr(names, public) for public in names.__all__}, __all__=names.__all__
            )
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module 'quietgrad' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
