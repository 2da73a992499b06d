"""Every message that the page on troubleshooting quotes is one that the library says."""

from __future__ import annotations

import ast
import re

import pytest
from scripts.imports import modules

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = re.findall(r'^\| "([^"]+)" \|', PAGE, flags=re.MULTILINE)


def literals() -> str:
    """All string literals of the package; what is filled in becomes a gap."""
    found = []
    for file in modules().values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
                )
    return "\n".join(found)


SAID = literals()


def test_many_messages_are_listed() -> None:
    assert len(QUOTED) > 35
    assert len(QUOTED) == len(set(QUOTED))


@pytest.mark.parametrize("message", QUOTED)
def test_a_listed_message_is_said(message: str) -> None:
    assert message in SAID
