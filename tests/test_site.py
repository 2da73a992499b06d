"""The API reference: every public name has an entry, and an example on the same page that runs (test_snippets.py)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from scripts.reference import with_code
from scripts.site import ROOT, notebook_page, public_names, turned, undocumented, with_formulas

from tests.pages import PAGES as READ
from tests.pages import elsewhere, snippets, title

INTEGRATIONS = ("hugging_face", "lightning", "pretrained", "flower", "flower_secure", "logs", "trl", "graphs")
"""Read and not imported: each needs packages of its own, and Flower an environment of its own."""
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
ENTRIES = {
    # A function in a module of its own name has an entry that says the name twice.
    re.sub(r"\.(\w+)\.\1$", r".\1", name): page
    for page in PAGES
    for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
}


def integrated() -> dict[str, ast.AST]:
    """The names in `__all__` of each integration, with what defines them."""
    names: dict[str, ast.AST] = {}
    for package in INTEGRATIONS:
        file = ROOT / "src" / "quietgrad" / "integrations" / package
        parts = [file.with_suffix(".py")] if file.with_suffix(".py").exists() else sorted(file.glob("*.py"))
        trees = [ast.parse(part.read_text()) for part in parts]
        listed = re.search(r"^__all__ = (\[.*?\])", "\n".join(map(ast.unparse, trees)), flags=re.MULTILINE)
        assert listed is not None, package
        defined = {getattr(node, "name", ""): node for tree in trees for node in tree.body}
        names |= {
            f"quietgrad.integrations.{package}.{name}": defined[name] for name in ast.literal_eval(listed[1])
        }
    return names


def estimators() -> dict[str, Any]:
    """The names of quietgrad.sklearn, which the package itself does not import."""
    module = pytest.importorskip("quietgrad.sklearn")
    return {f"quietgrad.sklearn.{name}": getattr(module, name) for name in module.__all__}


def test_every_public_name_has_an_entry_and_every_entry_is_public() -> None:
    assert len(ENTRIES) > 100
    assert set(ENTRIES) == set(public_names()) | set(integrated()) | set(estimators())


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_page_of_a_name_has_an_example_of_it(name: str) -> None:
    code = "\n".join([*snippets(ENTRIES[name]), *elsewhere(ENTRIES[name])])
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", code), f"{ENTRIES[name].name} shows no use of {name}"


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented(public_names() | estimators()) == []
    for name, node in integrated().items():
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        assert ast.get_docstring(node), name


def test_a_missing_docstring_is_seen() -> None:
    class Silent:
        def method(self) -> None: ...

    assert undocumented({"Silent": Silent}) == ["Silent", "Silent.method"]


def test_examples_in_docstrings_are_code() -> None:
    said = "Adds.\n\nExample:\n    a = 1\n\n    b = add(a)\n\nRaises:\n    ValueError: never."
    fenced = "Example:\n    ```python\n    a = 1\n\n    b = add(a)\n    ```\nRaises:"
    assert fenced in with_code(said)
    assert with_code("Adds.") == "Adds."


@pytest.mark.parametrize("page", READ, ids=title)
def test_a_list_begins_after_an_empty_line(page: Path) -> None:
    """The site would set it as part of the paragraph before."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    run_on = re.findall(r"^(?![-#|\s]|\d+\. |<)[^\n]+\n(?:- |\d+\. |\|)[^\n]*", text, flags=re.MULTILINE)
    assert not run_on


def test_links_of_the_readme_are_turned() -> None:
    assert turned("[a](docs/engine.md#noise) [b](CHANGELOG.md) ![c](docs/x.png)") == (
        "[a](engine.md#noise) [b](changelog.md) ![c](x.png)"
    )
    assert (
        turned("[Fashion](https://example.org/a) [licence](LICENSE)")
        == "[Fashion](https://example.org/a) licence"
    )


@pytest.mark.parametrize(
    "file", sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")), ids=lambda file: file.stem
)
def test_a_tutorial_is_a_page_that_ends_in_a_picture(file: Path) -> None:
    text, pictures = notebook_page(file)
    assert text.startswith("# ")
    last = text.split("```python\n")[-1]
    assert "\nplt.show()\n```" in last
    shown = re.search(r"!\[What the cell above draws\]\((\w+\.png)\)", last)
    assert shown is not None, "run `python -m scripts.run_notebooks`"
    assert pictures[shown[1]].startswith(b"\x89PNG")


def test_formulas_become_mathml() -> None:
    pages = [page for page in READ if "```math" in page.read_text()]
    assert len(pages) >= 8
    for page in pages:
        drawn = with_formulas(page.read_text())
        assert "```math" not in drawn
        assert drawn.count("<math") == page.read_text().count("```math")
        assert "<script" not in drawn
