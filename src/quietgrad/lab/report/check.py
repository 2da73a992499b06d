"""Is a report what its folder gives? It is rendered again, since seals without a key can be made by anybody."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace
from pathlib import Path

from quietgrad import __version__
from quietgrad.lab.compare.verification import TableVerdict, is_comparison, verify_comparison
from quietgrad.lab.files import read_json
from quietgrad.lab.report.page import FILE, render
from quietgrad.lab.run.statement.verification import Verdict, verify


@dataclass(frozen=True)
class ReportCheck:
    """What rendering again found.

    Args:
        problem: why the report is wrong, empty if it is not.
        said: what was and was not checked.
    """

    problem: str
    said: str


def verify_folder(path: Path) -> Verdict | TableVerdict:
    """Check the claims of a run or a comparison, and then that its report says what the folder gives."""
    found: Verdict | TableVerdict = verify_comparison(path) if is_comparison(path) else verify(path)
    speaks = found.stands or (isinstance(found, Verdict) and found.claims_nothing)
    if not speaks:  # what cannot be believed cannot vouch for a page
        return found
    report = check_report(path)
    if report.problem:
        said = f"The claim does NOT stand: {report.problem}."
        return replace(found, problems=(*found.problems, report.problem), said=said)
    return replace(found, said=f"{found.said} {report.said}")


def check_report(folder: Path) -> ReportCheck:
    """Render the page of a folder again and hold the file against it."""
    file = folder / FILE
    if not file.exists():
        return ReportCheck("", f"There is no {FILE}.")
    page, expected = file.read_text(encoding="utf-8"), render([folder])
    if page == expected:
        return ReportCheck("", f"{FILE} was rendered again: the same.")
    words, wanted = visible_text(page), visible_text(expected)
    if words == wanted:
        return ReportCheck(
            "", f"{FILE} says the same; its figures were NOT checked (another version drew them)."
        )
    articles = [
        visible_text(article) for article in re.findall(r"<article>.*?</article>", page, flags=re.DOTALL)
    ]
    (own,) = re.findall(r"<article>.*?</article>", expected, flags=re.DOTALL)
    if len(articles) > 1 and visible_text(own) in articles:
        return ReportCheck("", f"{FILE} is about other folders too, which were NOT checked.")
    difference = f"{FILE} is not what the folder gives: {_first_difference(words, wanted)}"
    made_by = _made_by(folder)
    if made_by == __version__:
        return ReportCheck(difference, "")
    versions = f"quietgrad {made_by} made the run, this is {__version__}"
    if _numbers(words) == _numbers(wanted):
        return ReportCheck("", f"{FILE} has the folder's numbers; its words were NOT checked ({versions}).")
    return ReportCheck(f"{difference}; {versions}", "")


def _made_by(folder: Path) -> str:
    """The version of quietgrad that trained the run; this one for a comparison, whose runs may differ."""
    versions = read_json(folder / "versions.json") if (folder / "versions.json").exists() else {}
    return str(versions.get("quietgrad", __version__))


def _numbers(words: str) -> list[str]:
    """All numbers of a text, sorted: another version may say the same in another order."""
    return sorted(re.findall(r"\d+(?:[.,]\d+)*", words))


def visible_text(page: str) -> str:
    """Return what a reader sees, figures left out: drawing differs between versions of matplotlib."""
    without_figures = re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", without_figures)).split())


def _first_difference(words: str, wanted: str) -> str:
    for one, other in zip(words.split(), wanted.split(), strict=False):
        if one != other:
            return f"it says {one[:40]!r} in the place of {other[:40]!r} (quietgrad report makes it again)"
    return "it is longer or shorter (quietgrad report makes it again)"
