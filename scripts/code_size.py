"""Lines, share of comments and length of functions of every package; two trees side by side.

    python -m scripts.code_size [OLD_SRC] [--json]

Packages that only gained an underscore or another name are compared with what they were.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import tokenize
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "quietgrad"
RENAMED = {"quiet": "linear_probe"}


@dataclass(frozen=True)
class Size:
    """Describe the code of one package.

    Args:
        lines: all lines of its modules.
        comments: lines that hold nothing but a comment, or end with one, in percent.
        function: median lines of a function.
    """

    lines: int
    comments: float
    function: float


def measure(source: Path) -> dict[str, Size]:
    """Return the size of every package below a folder, and of all together."""
    files = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source).parts
        name = parts[0].lstrip("_") if len(parts) > 1 else "(top)"
        for package in (RENAMED.get(name, name), "all"):
            files[package].append(file.read_text(encoding="utf-8"))
    return {package: _size(texts) for package, texts in sorted(files.items())}


def _size(texts: list[str]) -> Size:
    lines = sum(len(text.splitlines()) for text in texts)
    comments = sum(map(_comments, texts))
    lengths = [length for text in texts for length in _function_lengths(text)]
    return Size(lines, round(100 * comments / max(1, lines), 1), statistics.median(lengths or [0]))


def _comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def _function_lengths(text: str) -> list[int]:
    nodes = ast.walk(ast.parse(text))
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", type=Path, help="src/quietgrad of another version")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    now = measure(SOURCE)
    before = measure(arguments.old) if arguments.old else {}
    if arguments.json:
        print(json.dumps({name: asdict(size) for name, size in now.items()}, indent=2))
        return
    print(f"{'package':18} {'lines':>14} {'comments %':>14} {'function':>12}")
    for name in sorted(now.keys() | before.keys()):
        old, new = before.get(name), now.get(name)
        cells = [
            f"{'' if old is None else f'{getattr(old, key):g} → '}{'–' if new is None else f'{getattr(new, key):g}'}"
            for key in ("lines", "comments", "function")
        ]
        print(f"{name:18} {cells[0]:>14} {cells[1]:>14} {cells[2]:>12}")


if __name__ == "__main__":
    main()
