"""The lab, benchmarks and examples use public names wherever there are any."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import quietgrad as qg
from tests.pages import ROOT

PUBLIC = (qg, qg.accounting, qg.audit, qg.distributed, qg.federated, qg.methods)
FOLDERS = ("src/quietgrad/lab", "benchmarks", "examples")


def internal_imports(text: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import from an internal package."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quietgrad._"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def public_objects() -> dict[int, str]:
    return {
        id(getattr(package, name)): f"{package.__name__}.{name}"
        for package in PUBLIC
        for name in package.__all__
    }


def replaceable(files: list[Path]) -> set[tuple[str, str, str]]:
    """Find internal imports of objects that have a public name: (file, name, public name)."""
    public = public_objects()
    return {
        (str(file.relative_to(ROOT)), name, public[id(value)])
        for file in files
        for module, name in internal_imports(file.read_text())
        if id(value := getattr(import_module(module), name)) in public
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_public_is_imported_from_an_internal_package(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert replaceable(files) == set()


def test_a_public_name_from_an_internal_package_is_seen() -> None:
    text = "from quietgrad._noise.gaussian import Gaussian, widen_noise"
    assert list(internal_imports(text)) == [
        ("quietgrad._noise.gaussian", "Gaussian"),
        ("quietgrad._noise.gaussian", "widen_noise"),
    ]
    assert public_objects()[id(qg.Gaussian)] == "quietgrad.Gaussian"
