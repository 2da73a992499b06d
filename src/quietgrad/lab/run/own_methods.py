"""Methods that do not come with quietgrad: `my_module:scaled` beside the config, or an entry point of a package.

Their code runs wherever a run is trained, explained or attacked. Reports and `quietgrad verify` never import it; they
say that the method is foreign code, with the hash of its source.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import quietgrad as qg
from quietgrad.lab.errors import LabError, nearest

GROUP = "quietgrad.methods"
"""The group of entry points in which a package names its methods."""


def is_foreign(name: str) -> bool:
    """Whether a method's code does not come with quietgrad; nothing is imported to find out."""
    return name != "quiet" and name not in qg.methods.__all__


def find_method(name: str) -> Callable[..., Any]:
    """Return the function that makes a mechanism: of quietgrad, of a module or of an entry point.

    Raises:
        LabError: there is none of this name.
    """
    if not is_foreign(name):
        found: Callable[..., Any] = getattr(qg.methods, name)
        return found
    module, colon, function = name.partition(":")
    if colon:
        return _function(_module(module), function, name)
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in known:
        loaded: Callable[..., Any] = known[name].load()
        return loaded
    names = [*qg.methods.__all__, *known]
    raise LabError(
        f"Unknown method {name!r}{nearest(name, names)}. Known: {', '.join(names)}; one of your own: module:function."
    )


def source_hash(name: str) -> str | None:
    """Return the SHA-256 of the source file of a foreign method, None where there is none."""
    if not is_foreign(name):
        return None
    file = inspect.getsourcefile(inspect.unwrap(find_method(name)))
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _module(name: str) -> ModuleType:
    """Import a module; one in the current folder first, which an installed command does not search."""
    file = Path(f"{name.replace('.', '/')}.py").resolve()
    known = sys.modules.get(name)
    if known is not None and (not file.exists() or getattr(known, "__file__", None) == str(file)):
        return known
    if not file.exists():
        try:
            return import_module(name)
        except ModuleNotFoundError:
            raise LabError(
                f"There is no module {name!r}, neither in this folder nor installed. Start the command in the folder "
                f"of {file.name}."
            ) from None
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, function: str, name: str) -> Callable[..., Any]:
    found = getattr(module, function, None)
    if not callable(found):
        raise LabError(f"{name}: the module has no function {function!r}{nearest(function, dir(module))}.")
    made: Callable[..., Any] = found
    return made
