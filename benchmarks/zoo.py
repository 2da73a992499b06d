"""Real models and modules: right, or refused for a true reason; Opacus beside it where it is installed.

    python -m benchmarks.zoo --json FILE                     one verdict a line; what FILE has already is not run again
    python -m benchmarks.zoo --json FILE --only transformers     one family, or entries whose name contains the word
    python -m benchmarks.zoo --json FILE --table             the tables of the page Real models, nothing is run

Families whose package is missing are left out. How an entry is judged is said in `zoo_judges`.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks import zoo_judges as judges
from benchmarks.zoo_entries import (
    diffusion,
    families,
    graphs,
    hugging_face,
    peft_adapters,
    tabular,
    timm_models,
    torch_modules,
    torchvision_models,
)
from benchmarks.zoo_entries.base import Entry
from benchmarks.zoo_judges import Verdict
from quietgrad._mechanism.clipping import MARGIN

PACKAGES = {
    "transformers": "transformers",
    **dict.fromkeys(
        ("experts", "state space", "detection", "segmentation", "speech", "time series"), "transformers"
    ),
    "peft": "peft",
    "diffusers": "diffusers",
    "timm": "torchvision",
    "torchvision": "torchvision",
    "graphs": "torch_geometric",
    "tables": "rtdl_revisiting_models",
}
KINDS = ("right", "refused", "wrong", "crash", "slow")


@dataclass
class Row:
    """One entry: how it fared here and with Opacus."""

    family: str
    name: str
    parameters: int
    ours: Verdict
    opacus: Verdict = field(default_factory=lambda: Verdict("not run"))


def all_entries() -> Iterator[Entry]:
    for module in (
        torch_modules,
        hugging_face,
        families,
        peft_adapters,
        diffusion,
        timm_models,
        torchvision_models,
        graphs,
        tabular,
    ):
        yield from module.entries()


def judged(entry: Entry, times: bool = True) -> Row:
    """Compare one entry with the loop, and time it if it is right."""
    model = entry.model().double()
    inputs = judges.cast(entry.inputs(judges.N, torch.Generator().manual_seed(1)), torch.float64)
    rows = judges.looped(entry, model, inputs)
    ours = judges.judged(judges.our_sums(entry, model, inputs), rows, MARGIN)
    row = Row(entry.family, entry.name, rows.shape[1], ours)
    if ours.verdict == "right" and times:
        judges.timed(entry, judges.our_step, ours)
    if find_spec("opacus"):
        row.opacus = judges.judged(judges.opacus_sums(entry, entry.model().double(), inputs), rows, 0.0)
        if row.opacus.verdict == "right" and times:
            judges.timed(entry, judges.opacus_step, row.opacus)
    return row


def stored(path: Path | None) -> list[Row]:
    """The verdicts of a file."""
    if path is None or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Row(**{**row, "ours": Verdict(**row["ours"]), "opacus": Verdict(**row["opacus"])}) for row in rows
    ]


def table(rows: list[Row]) -> str:
    """Counts for each family, then all entries."""
    families = [
        _family(family, [row for row in rows if row.family == family])
        for family in dict.fromkeys(row.family for row in rows)
    ]
    columns = ["family", "entries", *KINDS, "median ratio", "right with Opacus", "both right: ratio, Opacus'"]
    each = ["model", "parameters", "plain, ms", "here", "ratio", "Opacus", "ratio"]
    return "\n".join(
        [
            _cells(columns),
            "|---" * 10 + "|",
            *families,
            "",
            _cells(each),
            "|---" * 7 + "|",
            *(_line(row) for row in rows),
        ]
    )


def _cells(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _family(family: str, rows: list[Row]) -> str:
    counts = " | ".join(str(sum(row.ours.verdict == kind for row in rows)) for kind in KINDS)
    theirs = [row for row in rows if row.opacus.verdict == "right"]
    both = [row for row in theirs if row.ours.verdict == "right"]
    ratios = f"{_median([row.ours.ratio for row in both])}, {_median([row.opacus.ratio for row in both])}"
    ours = _median([row.ours.ratio for row in rows])
    return f"| {family} | {len(rows)} | {counts} | {ours} | {len(theirs)} | {ratios} |"


def _line(row: Row) -> str:
    ours = f"{_said(row.ours)} | {_times(row.ours.ratio)}"
    theirs = f"{_said(row.opacus)} | {_times(row.opacus.ratio)}"
    return f"| {row.family} {row.name} | {row.parameters:,} | {_plain(row)} | {ours} | {theirs} |"


def _said(verdict: Verdict) -> str:
    if verdict.verdict == "wrong":
        return f"wrong by {verdict.error:.1g}"
    reason = " ".join(verdict.reason.split())[:70].replace("|", "/").replace("<", "").replace(">", "")
    return f"{verdict.verdict}: {reason}" if reason else verdict.verdict


def _times(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"×{ratio:.2f}"


def _plain(row: Row) -> str:
    return "–" if math.isnan(row.ours.plain_ms) else f"{row.ours.plain_ms:.3g}"


def _median(ratios: list[float]) -> str:
    known = sorted(r for r in ratios if not math.isnan(r))
    return _times(known[len(known) // 2]) if known else "–"


def run(only: str, path: Path | None, done: list[Row], times: bool = True) -> None:
    """Judge what is not done yet."""
    names = {(row.family, row.name) for row in done}
    for entry in all_entries():
        package = PACKAGES.get(entry.family, "torch")
        wanted = only.lower() in f"{entry.family} {entry.name}".lower() and find_spec(package) is not None
        if not wanted or (entry.family, entry.name) in names:
            continue
        try:
            row = judged(entry, times)
        except Exception as error:  # the model itself does not run in this version of its package
            print(f"{entry.family} {entry.name}: not built: {type(error).__name__} {error}"[:300], flush=True)
            continue
        done.append(row)
        for who, verdict in (("here", row.ours), ("Opacus", row.opacus)):
            figures = f"{verdict.verdict} {verdict.error:.1e} {_times(verdict.ratio)} {verdict.reason[:300]}"
            print(f"{entry.family} {entry.name} {who}: {figures}", flush=True)
        if path:
            with path.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compares real models with a loop over samples.")
    parser.add_argument("--only", default="", help="entries whose family or name contains this")
    parser.add_argument("--json", type=Path, help="append each verdict to this file")
    parser.add_argument("--no-times", action="store_true", help="verdicts only")
    parser.add_argument("--table", action="store_true", help="only print the tables of the file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    rows = stored(options.json)
    if not options.table:
        run(options.only, options.json, rows, times=not options.no_times)
    print(table(rows))


if __name__ == "__main__":
    main()
