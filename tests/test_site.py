"""The API reference: every public name has an entry, and an example on the same page that runs (test_snippets.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.site import ROOT, notebook_page, public_names, turned, undocumented

from tests.pages import snippets

INTEGRATIONS = ROOT / "docs" / "api" / "integrations.md"
"""Its names need packages of their own; they are used in docs/fine_tuning.md and docs/own_loop.md."""
PAGES = sorted(page for page in (ROOT / "docs" / "api").glob("*.md") if page != INTEGRATIONS)
ENTRIES = {
    name: page for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
}


def test_every_public_name_has_an_entry_and_every_entry_is_public() -> None:
    assert len(ENTRIES) > 100
    assert set(ENTRIES) == set(public_names())


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_page_of_a_name_has_an_example_of_it(name: str) -> None:
    code = "\n".join(snippets(ENTRIES[name]))
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", code), f"{ENTRIES[name].name} shows no use of {name}"


def test_every_integration_on_the_page_is_there() -> None:
    names = re.findall(r"^::: quietgrad\.(\S+)$", INTEGRATIONS.read_text(), flags=re.MULTILINE)
    assert len(names) > 8
    for name in names:
        room, _, last = name.rpartition(".")
        file = ROOT / "src" / "quietgrad" / Path(*room.split("."))
        text = "".join(
            part.read_text() for part in [file.with_suffix(".py"), *file.glob("*.py")] if part.exists()
        )
        assert re.search(rf"^(class|def) {last}\b", text, flags=re.MULTILINE), name


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented(public_names()) == []


def test_a_missing_docstring_is_seen() -> None:
    class Silent:
        def method(self) -> None: ...

    assert undocumented({"Silent": Silent}) == ["Silent", "Silent.method"]


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
