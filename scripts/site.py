"""What the site needs beyond Markdown: pages from outside `docs`, notebooks, and a check of the reference.

mkdocs calls the functions named `on_…`. The README, the changelog and similar pages stay where readers look for
them; here they become pages, with their links turned.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import quietgrad as qg

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files at the top of the repository that are pages of the site."""


def turned(text: str) -> str:
    """Links of a file at the top as those of a page in `docs`; what has no page (the licence) becomes plain text."""

    def turn(match: re.Match[str]) -> str:
        label, target, anchor = match["label"], match["target"], match["anchor"] or ""
        if target.startswith("docs/"):
            return f"[{label}]({target.removeprefix('docs/')}{anchor})"
        return f"[{label}]({OUTSIDE[target]}{anchor})" if target in OUTSIDE else label

    return re.sub(r"\[(?P<label>[^\]]*)\]\((?!https?:)(?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)", turn, text)


def public_modules() -> dict[str, ModuleType]:
    """The public packages by the name under which users reach them: `qg.methods` is `quietgrad.methods`."""
    packages = {f"quietgrad.{name}": getattr(qg, name) for name in qg.__all__}
    return {"quietgrad": qg} | {
        name: package for name, package in packages.items() if inspect.ismodule(package)
    }


def names_of(module: ModuleType) -> list[str]:
    """List the public names of a package: `__all__`, or what it defines itself without inner packages."""
    own = [
        name for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__
    ]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    return [name for name in names if name != "__version__" and not inspect.ismodule(getattr(module, name))]


def public_names() -> dict[str, Any]:
    """Every public object by its public name."""
    packages = public_modules().items()
    return {
        f"{package}.{name}": getattr(module, name)
        for package, module in packages
        for name in names_of(module)
    }


def undocumented(names: dict[str, Any]) -> list[str]:
    """Functions, classes and methods of classes that say nothing about themselves."""
    silent = []
    for name, found in names.items():
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        if not inspect.getdoc(found):
            silent.append(name)
        if inspect.isclass(found):
            methods = inspect.getmembers(found, inspect.isfunction)
            silent += [
                f"{name}.{key}" for key, method in methods if key[0] != "_" and not inspect.getdoc(method)
            ]
    return silent


def on_pre_build(**_: object) -> None:
    """A public name without a docstring stops the build."""
    from mkdocs.exceptions import PluginError

    if silent := undocumented(public_names()):
        raise PluginError(f"Public names without a docstring: {', '.join(silent)}")


def notebook_page(file: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, with what its cells printed, and the pictures it drew by name."""
    lines, pictures = [], {}
    for number, cell in enumerate(json.loads(file.read_text())["cells"]):
        source = "".join(cell["source"])
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if printed := "".join(printed_by(output) for output in cell.get("outputs", [])):
            lines.append(f"```text\n{printed.rstrip()}\n```")
        for drawn in (
            output["data"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
        ):
            name = f"{file.stem}_{number}.png"
            pictures[name] = base64.b64decode(drawn["image/png"])
            lines.append(f"![What the cell above draws]({name})")
    download = f"[Download this notebook]({file.name}){{ .md-button download }}"
    return "\n\n".join([*lines, download]) + "\n", pictures


def printed_by(output: dict[str, Any]) -> str:
    """The text of an output; a picture's own description is none."""
    data = output.get("data", {})
    return "" if "image/png" in data else "".join(output.get("text", data.get("text/plain", [])))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live outside `docs`, and each notebook as a page."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=turned((ROOT / source).read_text())))
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        folder = notebook.parent.relative_to(ROOT / "docs")
        text, pictures = notebook_page(notebook)
        files.append(File.generated(config, str(folder / f"{notebook.stem}.md"), content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, str(folder / name), content=picture))
    return files


def with_formulas(markdown: str) -> str:
    """Turn `math` fences into MathML, which browsers draw themselves: no script, and nothing to fetch."""
    from latex2mathml.converter import convert

    def render(match: re.Match[str]) -> str:
        formula = convert(match[1].strip(), display="block")
        return f'<div class="formula">{formula}</div>\n'

    return re.sub(r"^```math\n(.*?)^```\n", render, markdown, flags=re.DOTALL | re.MULTILINE)


def on_page_content(html: str, **_: object) -> str:
    """Let the keyboard reach formulas and wide tables, which scroll on narrow screens; the theme does so for code."""

    def reachable(table: re.Match[str]) -> str:
        is_wide = table[0].count("<th") >= 4 or re.search(r"<code>[^<]{30,}</code>", table[0])
        return table[0].replace("<table>", '<table tabindex="0">') if is_wide else table[0]

    html = html.replace('<div class="formula">', '<div class="formula" tabindex="0">')
    return re.sub(r"<table>.*?</table>", reachable, html, flags=re.DOTALL)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Draw formulas; links to files at the top of the repository, and to notebooks, lead to their pages."""
    markdown = with_formulas(markdown)
    depth = page.file.src_uri.count("/")
    for source, target in OUTSIDE.items():
        markdown = markdown.replace(f"]({'../' * (depth + 1)}{source}", f"]({'../' * depth}{target}")
    return re.sub(r"(?<!Download this notebook)\]\((\w+)\.ipynb\)", r"](\1.md)", markdown)


def on_post_page(output: str, **_: object) -> str:
    """Name the theme's search dialog for screen readers."""
    return output.replace(
        'component="search" role="dialog"', 'component="search" role="dialog" aria-label="Search"'
    )
