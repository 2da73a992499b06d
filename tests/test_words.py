"""One word, one meaning: words that the project no longer uses, and docstrings that name tests which exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scripts.imports import modules

import quietgrad as qg
from tests.pages import ROOT

OLD = {
    "borrowers": "modules_using",
    "evened": "preconditioned",
    "evening": "preconditioner",
    "fate": "batch axis",
    "heard": "recorded",
    "hears": "records",
    "holdings": "model tensors",
    "kin": "fusion key",
    "lent": "owned by",
    "listener": "observer",
    "people": "users",
    "person": "user",
    "settled": "constant_from, or decided",
    "shelf": "snapshot",
    "shelved": "snapshot",
    "told": "said, or distinguished",
    "unsettled": "undecided",
    "walks": "call path",
    "way": "algorithm",
    "ways": "algorithms",
}
"""Old word → what is written instead."""

IN_IDENTIFIERS = set(OLD) | {"condensed", "doubt", "proofs", "rooms", "settle"}
IN_PROSE = set(OLD) - {"people", "person", "way", "ways", "kin"}
"""In prose, "the other way round" or "the people behind the data" are ordinary English."""

PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(
        str(page.relative_to(ROOT)) for kind in ("md", "ipynb") for page in ROOT.glob(f"docs/**/*.{kind}")
    ),
]
CODE = ("benchmarks", "examples", "scripts", "tests")
"""Folders of Python files beside the package."""
NAMES_OF_0_2 = {"settled"}
"""Public names of 0.2 that still work, with a warning."""


def words_of(identifier: str) -> set[str]:
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", identifier).lower()))


def identifiers(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_no_identifier_has_an_old_word() -> None:
    found = {
        (name, identifier)
        for name, file in modules().items()
        for identifier in identifiers(file.read_text()) - NAMES_OF_0_2
        if words_of(identifier) & IN_IDENTIFIERS
    }
    assert found == set()


@pytest.mark.parametrize("folder", CODE)
def test_no_file_or_name_beside_the_package_has_an_old_word(folder: str) -> None:
    files = [file for file in ROOT.glob(f"{folder}/**/*.py") if file != Path(__file__)]
    assert files
    found = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in {file.stem} | identifiers(file.read_text()) - NAMES_OF_0_2
        if words_of(name) & IN_IDENTIFIERS
    }
    assert found == set()


def test_old_words_in_identifiers_are_seen() -> None:
    text = "class FateOf:\n    def told(self, way: int) -> None:\n        self.kin = UNSETTLED"
    assert {w for name in identifiers(text) for w in words_of(name)} & IN_IDENTIFIERS == {
        "fate",
        "told",
        "way",
        "kin",
        "unsettled",
    }


@pytest.mark.parametrize("page", PAGES)
def test_no_page_has_an_old_word(page: str) -> None:
    text = (ROOT / page).read_text().lower()
    assert {word for word in IN_PROSE if re.search(rf"\b{word}\b", text)} == set()


def first_lines() -> dict[str, str]:
    return {
        name: (getattr(qg, name).__doc__ or "").strip().split("\n")[0]
        for name in qg.__all__
        if callable(getattr(qg, name))
    }


def test_first_lines_of_public_docstrings_are_short() -> None:
    lines = first_lines()
    assert len(lines) > 40
    assert {name: line for name, line in lines.items() if len(line) > 80} == {}


def test_named_tests_exist() -> None:
    named = {
        path for file in modules().values() for path in re.findall(r"tests/[\w/]+\.py", file.read_text())
    } | set(re.findall(r"tests/[\w/]+\.py", (ROOT / "CONTRIBUTING.md").read_text()))
    assert len(named) > 20
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_files_of_the_call_path_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"^\| `([\w/]+\.py)` \|", text, flags=re.MULTILINE)
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / "src" / "quietgrad" / path).exists()] == []
