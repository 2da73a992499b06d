"""Draw the packages of quietgrad and which imports which.

    python -m scripts.package_map            # writes docs/packages.svg

A package stands above everything that it imports. An arrow is drawn only where no longer path says the same
(the transitive reduction): if `methods` builds upon `mechanism` and that upon `gradients`, the third arrow is left out.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from scripts.imports import PACKAGE, SOURCE, Graph, import_graph, package_imports

OUT = Path(__file__).parents[1] / "docs" / "packages.svg"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 262, 52, 22, 34, 16
LINE = 44  # characters of a package's sentence that fit into one line of its box

STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1c2733; text-anchor: middle }
    .name { font-weight: 600 }
    .what { font-size: 10.5px; fill: #4a5866 }
    rect { fill: #f4f7fa; stroke: #7d8fa1; rx: 7 }
    .api rect { fill: #e3f0ea; stroke: #2c7a58 }
    path { fill: none; stroke: #7d8fa1; stroke-width: 1.3; marker-end: url(#tip) }
    #tip path { fill: #7d8fa1; stroke: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .what { fill: #a9b7c4 } rect { fill: #1d2630; stroke: #6b7d8f }
      .api rect { fill: #17332a; stroke: #4fb388 }
    }
"""


def package_graph(graph: Graph) -> Graph:
    """Package → the packages that it imports."""
    packages: Graph = {}
    for here, there in package_imports(graph):
        packages.setdefault(here, set()).add(there)
        packages.setdefault(there, set())
    return packages


def levels(packages: Graph) -> dict[str, int]:
    """A package's level: the length of the longest path down; 0 imports nothing."""
    found: dict[str, int] = {}

    def level(package: str) -> int:
        if package not in found:
            found[package] = 1 + max((level(below) for below in packages[package]), default=-1)
        return found[package]

    for package in packages:
        level(package)
    return found


def reduced(packages: Graph) -> Graph:
    """Without the imports that a longer path implies; the public names, which name everything, keep the next level."""

    def below(package: str) -> set[str]:
        return packages[package].union(*(below(lower) for lower in packages[package]), set())

    level = levels(packages)
    kept = {
        package: direct - set().union(*(below(other) for other in direct), set())
        for package, direct in packages.items()
    }
    names = "_names"
    kept[names] = {package for package in kept[names] if level[package] == level[names] - 1}
    return kept


def sentence(package: str) -> str:
    """The first sentence of the package's own docstring."""
    folder = SOURCE / PACKAGE
    files = (folder / package / "__init__.py", folder / f"{package}.py")
    if package == PACKAGE:
        return "Public names on demand: import quietgrad as qg."
    text = ast.get_docstring(ast.parse(next(file for file in files if file.exists()).read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("`", "")


def wrapped(text: str) -> list[str]:
    """At most two lines."""
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > LINE and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines if len(lines) <= 2 else [lines[0], f"{lines[1]} …"]


def places(packages: Graph) -> tuple[dict[str, tuple[float, float]], int, int]:
    """The upper left corner of each box, and the size of the picture."""
    level = levels(packages)
    rows = [
        sorted(package for package in packages if level[package] == at)
        for at in range(max(level.values()), -1, -1)
    ]
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    corners: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        used = len(row) * (BOX_WIDTH + GAP_X) - GAP_X
        for index, package in enumerate(row):
            left = (width - used) / 2 + index * (BOX_WIDTH + GAP_X)
            corners[package] = (left, MARGIN + number * (BOX_HEIGHT + GAP_Y))
    return corners, width, 2 * MARGIN + len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x0, y0 = start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT
    x1, y1 = end[0] + BOX_WIDTH / 2, end[1] - 2
    bend = (y1 - y0) / 2
    return f'<path d="M{x0:g},{y0:g} C{x0:g},{y0 + bend:g} {x1:g},{y1 - bend:g} {x1:g},{y1:g}"/>'


def box(package: str, corner: tuple[float, float]) -> str:
    x, y = corner
    middle = x + BOX_WIDTH / 2
    lines = wrapped(sentence(package))
    top = y + (17 if len(lines) == 2 else 21)
    texts = [f'<text class="name" x="{middle:g}" y="{top:g}">{escape(package)}</text>']
    for number, line in enumerate(lines):
        height = top + 14 + 12 * number
        texts.append(f'<text class="what" x="{middle:g}" y="{height:g}">{escape(line)}</text>')
    kind = ' class="api"' if package == PACKAGE else ""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>'
    return f"<g{kind}>{shape}{''.join(texts)}</g>"


def drawing(graph: Graph) -> str:
    packages = package_graph(graph)
    corners, width, height = places(packages)
    arrows = [
        arrow(corners[a], corners[b])
        for a, direct in sorted(reduced(packages).items())
        for b in sorted(direct)
    ]
    tip = '<path d="M0,0 L8,4 L0,8 z"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            "<title>The packages of quietgrad: each stands above what it imports</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto">{tip}</marker></defs>',
            *arrows,
            *(box(package, corners[package]) for package in sorted(packages)),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    OUT.write_text(drawing(import_graph()))
    print(OUT)
