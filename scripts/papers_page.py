"""Write docs/papers.md and its pictures from the catalogue and the committed results: python -m scripts.papers_page."""

from __future__ import annotations

from pathlib import Path

from quietgrad.lab.papers.claims import paper
from quietgrad.lab.papers.committed import committed
from quietgrad.lab.papers.digest import page
from quietgrad.lab.papers.draw import draw

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    (DOCS / "papers.md").write_text(page(), encoding="utf-8")
    (DOCS / "papers").mkdir(exist_ok=True)
    for result in committed().values():
        of = paper(result.paper)
        draw(result.finding, DOCS / "papers" / f"{result.name}.png", of.heading(of.entry(result.entry)))


if __name__ == "__main__":
    main()
