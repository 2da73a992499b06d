"""Ledgers and the lab change files through `accounting.disk` alone: `benchmarks.crash_points` sees all of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quietgrad

SOURCE = Path(quietgrad.__file__).parent
PACKAGES = ("accounting", "lab", "federated", "_program", "_release", "_linear_probe")
CHANGES = {"fsync", "ftruncate", "unlink", "rmdir", "rmtree", "mkdir", "makedirs", "rename", "write_text"}
"""Names of functions that change the disk whoever they belong to."""
EXCEPT = {"lab/cli/demo.py": {"rmtree"}}
"""The demo deletes the folder of an earlier demo before it begins."""


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def is_change(call: ast.Call) -> bool:
    """A call that changes the disk, by its name, or writes to an open file."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, name = ast.unparse(call.func.value), call.func.attr
    if owner == "disk()":
        return False
    return (
        name in CHANGES
        or (owner, name) in {("os", "replace"), ("os", "remove"), ("os", "write"), ("part", "replace")}
        or (name in ("write", "truncate") and owner in ("file", "fresh", "self._file"))
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_is_changed_elsewhere(package: str) -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {ast.unparse(call.func)}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        if path.name != "disk.py"
        for call in calls(path)
        if is_change(call)
        and ast.unparse(call.func).split(".")[-1] not in EXCEPT.get(str(path.relative_to(SOURCE)), set())
    }
    assert not found


def test_the_scan_finds_a_change() -> None:
    changes = ("os.fsync(1)", "path.unlink()", "file.write(b'')", "os.replace(a, b)")
    others = ("text.replace('a', 'b')", "disk().replace(a, b)")
    found = {text: is_change(ast.parse(text, mode="eval").body) for text in (*changes, *others)}  # type: ignore[arg-type]
    assert found == dict.fromkeys(changes, True) | dict.fromkeys(others, False)
