"""Small pieces of HTML; every text is escaped here and nowhere else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure

from quietgrad.lab.report.plots import to_svg


def text(value: object) -> str:
    return html.escape(str(value))


def paragraph(words: str) -> str:
    return f"<p>{text(words)}</p>"


def bullets(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def section(title: str, first: str, *rest: str) -> str:
    """A titled section; on paper the title stays with what follows it."""
    start = f'<div class="start"><h2>{text(title)}</h2>{first}</div>'
    return f"<section>{start}{''.join(rest)}</section>"


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; on a narrow screen each row becomes a block that repeats the titles."""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = "".join(f"<tr>{_cells(titles, row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(titles: Sequence[str], row: Sequence[object]) -> str:
    return "".join(
        f'<td data-title="{text(title)}">{text(cell)}</td>' for title, cell in zip(titles, row, strict=True)
    )


def facts(pairs: Mapping[str, object]) -> str:
    """Names and values, one a line."""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in pairs.items()
    )
    return f'<div class="wide"><table class="facts"><tbody>{rows}</tbody></table></div>'


def cards(pairs: Mapping[str, tuple[str, str]]) -> str:
    """Big numbers with a caption and a note."""
    items = "".join(
        f'<div class="card"><div class="caption">{text(name)}</div><div class="number">{text(value)}</div>'
        f'<div class="note">{text(note)}</div></div>'
        for name, (value, note) in pairs.items()
    )
    return f'<div class="cards">{items}</div>'


def badge(words: str, *, good: bool) -> str:
    return f'<span class="badge {"good" if good else "bad"}">{text(words)}</span>'


def figure(drawn: Figure, caption: str, alt: str) -> str:
    """A figure; `alt` says in words what the picture shows."""
    return f"<figure>{to_svg(drawn, alt)}<figcaption>{text(caption)}</figcaption></figure>"


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def preformatted(content: str) -> str:
    return f"<pre>{text(content)}</pre>"


def document(title: str, style: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        # The page may load nothing at all, whatever a data set's name tries to smuggle in.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )
