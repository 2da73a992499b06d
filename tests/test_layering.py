"""The core stands on its own: it never imports the lab, nor anything outside its stated dependencies."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import quietgrad

ROOT = Path(quietgrad.__file__).parent
ALLOWED = {"torch", "numpy", "scipy", "dp_accounting", "jaxtyping", "quietgrad"} | set(
    sys.stdlib_module_names
)


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} uses a relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def core_files() -> list[Path]:
    return [file for file in ROOT.rglob("*.py") if "lab" not in file.relative_to(ROOT).parts]


def test_the_core_never_imports_the_lab() -> None:
    files = core_files()
    assert len(files) > 20
    for file in files:
        assert not any(name.startswith("quietgrad.lab") for name in imports(file)), file


def test_the_core_imports_only_its_dependencies() -> None:
    for file in core_files():
        foreign = {name.split(".")[0] for name in imports(file)} - ALLOWED
        assert not foreign, f"{file} imports {foreign}"
