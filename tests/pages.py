"""The pages that a reader meets, and the Python in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

WITH_EXAMPLES = [*sorted((ROOT / "docs" / "api").glob("*.md")), ROOT / "docs" / "extending.md"]
"""Pages whose examples must train a model (`test_examples_train.py`)."""


def snippets(page: Path) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def elsewhere(page: Path) -> list[str]:
    """The blocks that need an environment of their own, marked `py`: tests/integrations/test_flower.py runs them."""
    return re.findall(r"^```py\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


SHELL = {"", "bash", "console", "sh", "text"}
"""Languages of blocks that may hold commands."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of every fenced block, in order."""
    language: str | None = None
    lines: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = re.fullmatch(r"\s*```(\w*)\s*", line)
        if fence is None:
            lines.append(line)
            continue
        if language is not None:
            yield language, "\n".join(lines) + "\n"
        language, lines = (fence[1] if language is None else None), []


def commands(page: Path, *starts: str) -> list[str]:
    """Command lines that begin with one of the words, in blocks and in inline code, without comments and prompts."""
    text = "\n".join(block for language, block in blocks(page) if language in SHELL)
    lines = [line.removeprefix("$ ") for line in text.replace("\\\n", " ").splitlines()]
    found = [re.split(r"\s+#", line)[0].strip() for line in lines]
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [line for line in found if line.startswith(starts) and "…" not in line]


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))
