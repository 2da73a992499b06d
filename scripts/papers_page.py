"""Write the pages on the papers from the catalogue and the committed results: python -m scripts.papers_page.

An overview, one page a paper with what holds and what does not, and the entries behind it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from quietgrad.lab.papers.claims import Paper, PaperEntry, Verdict, paper, papers
from quietgrad.lab.papers.committed import Result, committed, verdict_of, verdict_text
from quietgrad.lab.papers.draw import draw

DOCS = Path(__file__).parents[1] / "docs"
GROUPS: Mapping[str, tuple[Verdict, ...]] = {
    "statements: hold / in part / do not": ("holds", "holds in part", "does not hold"),
    "leads: seen / in part / not seen": ("lead seen", "lead seen in part", "lead not seen"),
    "not checkable here": ("not checkable here",),
    "not run": ("not run",),
}
"""The columns of the overview. A lemma and an accuracy never share a verdict."""
Results = Mapping[tuple[str, str], Result]
TOGETHER = ("gep", "cifar10")
MAP = "regimes"


def pages() -> dict[str, str]:
    """Every page by its path below docs: an overview, one page a paper, and the entries behind it."""
    results = committed()
    made = {"papers.md": _overview(results)}
    for one in papers().values():
        made[f"papers/{one.id}.md"] = _paper(one, results)
        made[f"notes/papers/{one.id}.md"] = _entries(one, results)
    return {path: text.rstrip() + "\n" for path, text in made.items()}


def _overview(results: Results) -> str:
    counts = [f"| [{one.id}](papers/{one.id}.md) | {_counts(one, results)} |" for one in papers().values()]
    return f"""# The papers

After this page you know which claims of the five papers hold here, and how to check one.

```
quietgrad papers                             # every claim with its verdict
quietgrad papers gep table1 --scale quick    # run a table or figure
quietgrad papers queue --scale reduced --jobs 2    # run all of a scale; started again, it continues
```

A *statement* is a theorem, an algorithm or a measurement that compares no methods: it holds, holds in part, or does
not. A *lead* is one method above another in accuracy. It is seen if it exceeds twice its error, and seen in part if it
is also less than half of the paper's. A lead that was not seen is not refuted: the paper's own scale may show it.

Three scales: "full" is the paper's plan, "reduced" is real data with a smaller network or fewer steps, "quick" takes a
few minutes on the embedded images.

| paper | {" | ".join(GROUPS)} |
|---|{"---|" * len(GROUPS)}
""" + "\n".join(counts) + "\n" + _together(results)  # fmt: skip


def _together(results: Results) -> str:
    """The one table that has methods of several papers."""
    result = results.get(TOGETHER)
    if result is None:
        return ""
    rows = [_cells(row.label, f"{row.ours:g}", row.note) for row in result.finding.rows]
    head = ["", "## Side by side on CIFAR-10", "", f"`{result.command}`:", ""]
    table = [_cells(result.finding.unit, "ours", "setting"), "|---|---|---|", *rows]
    settings = f"[Settings](notes/papers/{TOGETHER[0]}.md)"
    tail = (
        f"These are one small network, few steps and one seed; the papers' networks are larger. {settings}."
    )
    return "\n".join([*head, *table, "", tail, ""])


def _counts(one: Paper, results: Results) -> str:
    found = Counter(verdict_of(entry, results.get((one.id, entry.id)))[0] for entry in one.entries)
    return " | ".join(" / ".join(str(found[verdict]) for verdict in group) for group in GROUPS.values())


def _paper(one: Paper, results: Results) -> str:
    found = {entry: results.get((one.id, entry.id)) for entry in one.entries}
    pictures = [result for result in found.values() if result is not None and result.finding.pictures]
    lines = [
        f"# {one.title}",
        "",
        f"{one.authors}, {one.year}. `quietgrad papers {one.id}` lists the claims.",
        "",
        *_sentences(one.summary),
        "",
        "## What was found",
        "",
        *_verdicts(found),
        "",
        f"[Every entry]({'../notes/papers/' + one.id}.md) has its command, its settings and its figures.",
    ]
    if pictures:
        lines += ["", f"![{one.id} {pictures[0].entry}]({pictures[0].name}.png)"]
    if MAP in {entry.id for entry in found} and (result := results.get((one.id, MAP))) is not None:
        lines += ["", *_map(result)]
    return "\n".join(lines) + "\n"


def _map(result: Result) -> list[str]:
    """Where the method leads DP-SGD, as a table and a figure."""
    rows = [
        _cells(row.label, f"{row.ours:+.1f} ± {row.spread or 0.0:.1f}", row.note)
        for row in result.finding.rows
    ]
    return [
        "## Where it leads",
        "",
        f"`{result.command}`: {result.finding.why}.",
        "",
        _cells("place", "lead over DP-SGD, points", "accuracy of both"),
        "|---|---|---|",
        *rows,
        "",
        f"![{result.paper} {result.entry}]({result.name}.png)",
    ]


def _sentences(text: str) -> list[str]:
    """A summary as a list of its sentences: one claim a line."""
    return [f"- {sentence.rstrip('.')}." for sentence in re.split(r"(?<=\.) (?=[A-Z])", text) if sentence]


def _entries(one: Paper, results: Results) -> str:
    found = {entry: results.get((one.id, entry.id)) for entry in one.entries}
    measured = [result for result in found.values() if result is not None]
    lines = [
        f"# Every entry: {one.id}",
        "",
        " ".join(_picture(result) for result in measured if result.finding.pictures),
        "",
        "| | entry | theirs | ours | why |",
        "|---|---|---|---|---|",
        *(_line(entry, result) for entry, result in found.items()),
    ]
    if measured:
        lines += ["", "## Measured", "", *(_table(result, one) for result in measured)]
    return "\n".join(lines) + "\n"


def _verdicts(found: Mapping[PaperEntry, Result | None]) -> list[str]:
    """One row for each kind of verdict, with the entries that have it."""
    judged: dict[str, list[str]] = {verdict: [] for group in GROUPS.values() for verdict in group}
    for entry, result in found.items():
        verdict = verdict_of(entry, result)[0]
        scale = f" ({result.scale})" if verdict.startswith("lead") and result is not None else ""
        judged[verdict].append(f"{entry.id}{scale}")
    rows = [
        _cells(_heading(kind), str(len(entries)), ", ".join(entries))
        for kind, entries in judged.items()
        if entries
    ]
    return ["| verdict | entries | which |", "|---|---|---|", *rows]


def _heading(verdict: str) -> str:
    return "lead not seen at this scale" if verdict == "lead not seen" else verdict


def _line(entry: PaperEntry, result: Result | None) -> str:
    verdict, why = verdict_of(entry, result)
    command = entry.check if result is None else result.command
    cells = [
        verdict_text(verdict, result),
        f"**{entry.id}** {entry.title}",
        entry.theirs,
        entry.ours,
        f"{why}. `{command}`",
    ]
    return _cells(*cells)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _picture(result: Result) -> str:
    return f"![{result.paper} {result.entry}](../../papers/{result.name}.png)"


def _table(result: Result, one: Paper) -> str:
    finding = result.finding
    took = "" if result.seconds is None else f", {result.seconds:.0f} s"
    lines = [
        f"**{one.entry(result.entry).title}** ({result.entry}, {result.scale}{took}): `{result.command}`",
        "",
        _cells(finding.unit, "theirs", "ours", ""),
        "|---|---|---|---|",
    ]
    for row in finding.rows:
        theirs = "" if row.theirs is None else f"{row.theirs:g}"
        spread = "" if row.spread is None else f" ± {row.spread:.2g}"
        lines.append(_cells(row.label, theirs, f"{row.ours:g}{spread}", row.note))
    return "\n".join([*lines, "", f"{finding.settings}. {result.remark}".strip(), ""])


def main() -> None:
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")
    for result in committed().values():
        of = paper(result.paper)
        draw(result.finding, DOCS / "papers" / f"{result.name}.png", of.heading(of.entry(result.entry)))


if __name__ == "__main__":
    main()
