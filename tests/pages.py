"""The pages that a reader meets, and the Python in them."""

from __future__ import annotations

import re
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


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))
