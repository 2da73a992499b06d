"""Draw the rooms of the package and who builds upon whom, from the imports.

    python -m scripts.room_map            # writes docs/rooms.svg

A room stands above everything that it imports. An arrow is drawn only where no longer way says the same
(the transitive reduction): if `methods` builds upon `mechanism` and that upon `gradients`, the third arrow is left out.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from scripts.imports import PACKAGE, SOURCE, Graph, import_graph, room_imports

OUT = Path(__file__).parents[1] / "docs" / "rooms.svg"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 262, 52, 22, 34, 16
LINE = 44  # characters of a room's sentence that fit into one line of its box

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


def room_graph(graph: Graph) -> Graph:
    """Room → the rooms that it imports."""
    rooms: Graph = {}
    for here, there in room_imports(graph):
        rooms.setdefault(here, set()).add(there)
        rooms.setdefault(there, set())
    return rooms


def levels(rooms: Graph) -> dict[str, int]:
    """A room's level: the length of the longest way down; 0 imports nothing."""
    found: dict[str, int] = {}

    def level(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((level(below) for below in rooms[room]), default=-1)
        return found[room]

    for room in rooms:
        level(room)
    return found


def reduced(rooms: Graph) -> Graph:
    """Without the imports that a longer way implies; the public names, which name everything, keep the next level."""

    def below(room: str) -> set[str]:
        return rooms[room].union(*(below(next_room) for next_room in rooms[room]), set())

    level = levels(rooms)
    kept = {
        room: direct - set().union(*(below(other) for other in direct), set())
        for room, direct in rooms.items()
    }
    kept[PACKAGE] = {room for room in kept[PACKAGE] if level[room] == level[PACKAGE] - 1}
    return kept


def sentence(room: str) -> str:
    """The first sentence of the room's own docstring."""
    folder = SOURCE / PACKAGE
    files = (folder / room / "__init__.py", folder / f"{room}.py")
    if room == PACKAGE:
        return "The public names: import quietgrad as qg."
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


def places(rooms: Graph) -> tuple[dict[str, tuple[float, float]], int, int]:
    """The upper left corner of each box, and the size of the picture."""
    level = levels(rooms)
    rows = [sorted(room for room in rooms if level[room] == at) for at in range(max(level.values()), -1, -1)]
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    corners: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        used = len(row) * (BOX_WIDTH + GAP_X) - GAP_X
        for index, room in enumerate(row):
            left = (width - used) / 2 + index * (BOX_WIDTH + GAP_X)
            corners[room] = (left, MARGIN + number * (BOX_HEIGHT + GAP_Y))
    return corners, width, 2 * MARGIN + len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x0, y0 = start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT
    x1, y1 = end[0] + BOX_WIDTH / 2, end[1] - 2
    bend = (y1 - y0) / 2
    return f'<path d="M{x0:g},{y0:g} C{x0:g},{y0 + bend:g} {x1:g},{y1 - bend:g} {x1:g},{y1:g}"/>'


def box(room: str, corner: tuple[float, float]) -> str:
    x, y = corner
    middle = x + BOX_WIDTH / 2
    lines = wrapped(sentence(room))
    top = y + (17 if len(lines) == 2 else 21)
    texts = [f'<text class="name" x="{middle:g}" y="{top:g}">{escape(room)}</text>']
    for number, line in enumerate(lines):
        height = top + 14 + 12 * number
        texts.append(f'<text class="what" x="{middle:g}" y="{height:g}">{escape(line)}</text>')
    kind = ' class="api"' if room == PACKAGE else ""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>'
    return f"<g{kind}>{shape}{''.join(texts)}</g>"


def drawing(graph: Graph) -> str:
    rooms = room_graph(graph)
    corners, width, height = places(rooms)
    arrows = [
        arrow(corners[a], corners[b]) for a, direct in sorted(reduced(rooms).items()) for b in sorted(direct)
    ]
    tip = '<path d="M0,0 L8,4 L0,8 z"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            "<title>The rooms of quietgrad: each stands above what it imports</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto">{tip}</marker></defs>',
            *arrows,
            *(box(room, corners[room]) for room in sorted(rooms)),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    OUT.write_text(drawing(import_graph()))
    print(OUT)
