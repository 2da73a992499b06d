"""The page of the examples of Opacus: what changes from a plain script to a private one.

python -m scripts.opacus_examples       writes the differences into docs/opacus_examples.md
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "opacus_examples.md"
NAMES = ("mnist", "imdb", "char_lstm", "cifar10", "dcgan")


def lines(name: str, kind: str) -> list[str]:
    """A script's lines, without empty ones."""
    text = (ROOT / "examples" / "opacus" / kind / f"{name}.py").read_text()
    return [line for line in text.splitlines() if line]


def changed(name: str) -> int:
    """How many lines are changed, added or removed; a line in another's place counts once."""
    matcher = difflib.SequenceMatcher(None, lines(name, "plain"), lines(name, "private"), autojunk=False)
    return sum(max(b - a, d - c) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal")


def difference(name: str) -> str:
    """The unified difference, one line of context."""
    found = difflib.unified_diff(lines(name, "plain"), lines(name, "private"), lineterm="", n=1)
    return "\n".join(line for line in list(found)[2:] if not line.startswith("@@"))


def page(text: str) -> str:
    """The page with the differences as they are now."""
    for name in NAMES:
        block = f"```diff\n{difference(name)}\n```"
        pattern = rf"(<!-- {name} -->\n).*?```diff\n.*?\n```"
        text = re.sub(
            pattern,
            lambda match, block=block, name=name: f"{match[1]}{changed(name)} lines:\n\n{block}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
