"""Who imports whom in the package, read from the source: type-only and function-local imports count like all others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "quietgrad"
SOURCE = Path(__file__).parents[1] / "src"

Graph = dict[str, set[str]]
"""Each module's dotted name, and every dotted name that it imports (of the package or foreign)."""


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Each module of the package by its dotted name; a package's `__init__` goes by the package's name."""
    return {_dotted(file.relative_to(source)): file for file in sorted((source / PACKAGE).rglob("*.py"))}


def _dotted(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(source: Path = SOURCE) -> Graph:
    """The imports of every module; `from package import module` counts as an import of the module."""
    known = modules(source)
    return {name: set(_imported(file.read_text(), known, name)) - {name} for name, file in known.items()}


def _imported(text: str, known: dict[str, Path], importer: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{importer} uses a relative import (line {node.lineno}). Write it out.")
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


def package_of(module: str, *, of: str = PACKAGE) -> str | None:
    """The package of `of` that a module belongs to; `of` itself for its `__init__`; None outside."""
    if module == of:
        return of
    return module.removeprefix(f"{of}.").split(".")[0] if module.startswith(f"{of}.") else None


def package_imports(graph: Graph, *, of: str = PACKAGE) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """For each pair of different packages of `of`, the (importer, imported) modules that join them."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for importer, targets in graph.items():
        for target in targets:
            here, there = package_of(importer, of=of), package_of(target, of=of)
            if here and there and here != there:
                found.setdefault((here, there), set()).add((importer, target))
    return found
