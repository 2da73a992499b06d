"""Write docs/papers.md and its pictures from the catalogue and the committed results: python -m scripts.papers_page.

The page says what holds, what does not, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from quietgrad.lab.papers.claims import Paper, PaperEntry, paper, papers
from quietgrad.lab.papers.committed import Result, committed, verdict_of
from quietgrad.lab.papers.draw import draw

DOCS = Path(__file__).parents[1] / "docs"
MARKS = {"confirmed": "✓", "weaker": "≈", "refuted": "✗", "not checkable here": "–", "not run": "…"}
Results = Mapping[tuple[str, str], Result]
TOGETHER = ("gep", "cifar10")


def page() -> str:
    """The whole page."""
    results = committed()
    parts = [_head(results), *(_paper(one, results) for one in papers().values())]
    return "\n".join(parts).rstrip() + "\n"


def _head(results: Results) -> str:
    counts = [f"| {one.id} | {_counts(one, results)} |" for one in papers().values()]
    return f"""# The papers, entry by entry

Every algorithm, table, figure and statement of the five papers: what it claims, what was found here, and how to
find it again. `quietgrad papers` lists this page, `quietgrad papers gep table1 --scale quick|reduced|full` runs an
entry (with an estimate of the time first; stopped runs go on where they were, and entries that share a training
share its run). Made by `python -m scripts.papers_page`.

✓ confirmed · ≈ weaker than claimed, or not distinguished from chance · ✗ refuted at the scale tried ·
– not checkable here · … not run, with its cost. A verdict is about the scale that stands beside it: "reduced" is real
data on a smaller network or in fewer steps, "quick" a few minutes on the embedded images, "full" the paper's plan. A
lead counts if it is above twice its error, and is weaker if it is below half of the paper's. Errors of one seed are
what seeds are known to differ by where that is said, else those of the test set alone: one seed shows large leads
only.

| paper | {" | ".join(MARKS.values())} |
|---|{"---|" * len(MARKS)}
""" + "\n".join(counts) + "\n" + _together(results)  # fmt: skip


def _together(results: Results) -> str:
    """The one table that has methods of several papers."""
    result = results.get(TOGETHER)
    if result is None:
        return ""
    verdict, why = result.finding.verdict, result.finding.why
    return "\n".join(
        [
            "",
            "## Side by side on CIFAR-10",
            "",
            _table(result, papers()[TOGETHER[0]]),
            f"{MARKS[verdict]} {why}.",
            "",
        ]
    )


def _counts(one: Paper, results: Results) -> str:
    found = Counter(verdict_of(entry, results.get((one.id, entry.id)))[0] for entry in one.entries)
    return " | ".join(str(found.get(verdict, 0)) for verdict in MARKS)  # type: ignore[call-overload]


def _paper(one: Paper, results: Results) -> str:
    found = {entry: results.get((one.id, entry.id)) for entry in one.entries}
    measured = [result for result in found.values() if result is not None]
    lines = [
        f"## {one.title}",
        "",
        f"{one.authors}, {one.year}. `quietgrad papers {one.id}`",
        "",
        one.summary,
        "",
        *_verdicts(found),
        "",
        " ".join(_picture(result) for result in measured if result.finding.pictures),
        "",
        f"### Every entry: {one.id}",
        "",
        "| | entry | theirs | ours | why |",
        "|---|---|---|---|---|",
        *(_line(entry, result) for entry, result in found.items()),
    ]
    tables = [_table(result, one) for result in measured if (one.id, result.entry) != TOGETHER]
    if tables:
        lines += ["", f"### Measured: {one.id}", "", *tables]
    return "\n".join(lines) + "\n"


def _verdicts(found: Mapping[PaperEntry, Result | None]) -> list[str]:
    """What holds by name, what does not with its reason."""
    judged = [(entry, *verdict_of(entry, result)) for entry, result in found.items()]
    holds = [entry.id for entry, verdict, _ in judged if verdict == "confirmed"]
    rest = [
        f"- {MARKS[kind]} **{entry.id}** {entry.title}: {why}."
        for kind in MARKS
        for entry, verdict, why in judged
        if verdict == kind != "confirmed"
    ]
    return [f"- ✓ {', '.join(holds)}.", *rest]


def _line(entry: PaperEntry, result: Result | None) -> str:
    verdict, why = verdict_of(entry, result)
    command = entry.check if result is None else result.command
    cells = [
        MARKS[verdict],
        f"**{entry.id}** {entry.title}",
        entry.theirs,
        entry.ours,
        f"{why}. `{command}`",
    ]
    return _cells(*cells)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _picture(result: Result) -> str:
    return f"![{result.paper} {result.entry}](papers/{result.name}.png)"


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
    (DOCS / "papers.md").write_text(page(), encoding="utf-8")
    (DOCS / "papers").mkdir(exist_ok=True)
    for result in committed().values():
        of = paper(result.paper)
        draw(result.finding, DOCS / "papers" / f"{result.name}.png", of.heading(of.entry(result.entry)))


if __name__ == "__main__":
    main()
