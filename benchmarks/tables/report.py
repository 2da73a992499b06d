"""The league as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

Line = dict[str, Any]


def report(lines: Iterable[Line], groups: dict[str, str]) -> str:
    """Mean differences to the peers, then every table; both of classifiers, then of regressors."""
    known = [line for line in lines if line["table"] in groups and "error" not in line]
    failed = sorted({(line["contender"], line["table"]) for line in lines if "error" in line})
    kinds = [[line for line in known if (key in line)] for key in ("auc", "r2")]
    parts = [_differences(kinds[0], "auc", groups), _differences(kinds[0], "accuracy", groups)]
    parts += [
        _ceilings(kinds[0], "auc"),
        _log_losses(kinds[0]),
        _every_table(kinds[0], "auc"),
        _every_table(kinds[1], "r2"),
    ]
    parts.append("Errors: " + "; ".join(f"{who} on {table}" for who, table in failed) if failed else "")
    return "\n\n".join(part for part in parts if part)


def means(lines: list[Line], score: str) -> dict[tuple[str, str, float], tuple[float, int]]:
    """(table, contender, ε) → the mean over splits, and their number."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for line in lines:
        found.setdefault((line["table"], line["contender"], line["epsilon"]), []).append(line[score])
    return {key: (float(np.mean(values)), len(values)) for key, values in found.items()}


def paired(lines: list[Line], ours: str, peer: str) -> list[Line]:
    """The runs of both on splits that both have."""
    where: dict[str, set[tuple[str, float, int]]] = {ours: set(), peer: set()}
    for line in lines:
        if line["contender"] in where:
            where[line["contender"]].add((line["table"], line["epsilon"], line["seed"]))
    both = where[ours] & where[peer]
    return [
        line
        for line in lines
        if line["contender"] in where and (line["table"], line["epsilon"], line["seed"]) in both
    ]


def _differences(lines: list[Line], score: str, groups: dict[str, str]) -> str:
    """A row for each peer and group of tables: mean ± standard error over tables, and how many are won."""
    epsilons = sorted({line["epsilon"] for line in lines if line["epsilon"]})
    peers = sorted({line["contender"] for line in lines if line["epsilon"]} - {"quietgrad"})
    rows = []
    for peer in peers:
        found = means(paired(lines, "quietgrad", peer), score)
        for group in ("before", "after", "all"):
            tables = [table for table in groups if group in ("all", groups[table])]
            cells = [_difference(found, peer, epsilon, tables) for epsilon in epsilons]
            rows.append(f"| {peer}, {group} | " + " | ".join(cells) + " |")
    titles = " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons)
    head = f"| {score}: ours − peer, tables | {titles} |\n|" + "---|" * (len(epsilons) + 1)
    return "\n".join([head, *rows]) if rows else ""


def _difference(
    found: dict[tuple[str, str, float], tuple[float, int]], peer: str, epsilon: float, tables: list[str]
) -> str:
    both = [table for table in tables if (table, peer, epsilon) in found]
    if not both:
        return "–"
    return _gaps([100 * (found[t, "quietgrad", epsilon][0] - found[t, peer, epsilon][0]) for t in both])


def _gaps(gaps: list[float]) -> str:
    error = np.std(gaps, ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
    return f"{np.mean(gaps):+.1f} ± {error:.1f}, {sum(gap > 0 for gap in gaps)} of {len(gaps)}"


def _ceilings(lines: list[Line], score: str) -> str:
    """What no privacy at all gains over each peer, which bounds what a private model can."""
    found = means(lines, score)
    epsilons = sorted({epsilon for _, _, epsilon in found if epsilon})
    peers = sorted({who for _, who, epsilon in found if epsilon} - {"quietgrad"})
    references = sorted({who for _, who, epsilon in found if not epsilon and who != "prior"})
    rows = []
    for peer in peers:
        for name, models in [*((one, [one]) for one in references), ("the better of them", references)]:
            cells = [_ceiling(found, peer, epsilon, models) for epsilon in epsilons]
            rows.append(f"| {name} − {peer} | " + " | ".join(cells) + " |")
    titles = " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons)
    head = f"| {score}: without privacy − peer, tables | {titles} |\n|" + "---|" * (len(epsilons) + 1)
    return "\n".join([head, *rows]) if rows else ""


def _ceiling(
    found: dict[tuple[str, str, float], tuple[float, int]], peer: str, epsilon: float, models: list[str]
) -> str:
    tables = [table for table, who, spent in found if (who, spent) == (peer, epsilon)]
    best = {table: max(found[table, model, 0.0][0] for model in models) for table in tables}
    return _gaps([100 * (best[table] - found[table, peer, epsilon][0]) for table in tables])


def _log_losses(lines: list[Line]) -> str:
    """Where a contender's log loss is not below that of the prior."""
    found, rows = means(lines, "log_loss"), []
    for who in sorted({who for _, who, epsilon in found if epsilon}):
        for epsilon in sorted({e for _, w, e in found if e and w == who}):
            tables = [t for t, w, e in found if (w, e) == (who, epsilon) and (t, "prior", 0.0) in found]
            above = [t for t in tables if found[t, who, epsilon][0] >= found[t, "prior", 0.0][0]]
            rows.append(
                f"| {who} | {epsilon:g} | {len(above)} of {len(tables)} | {', '.join(sorted(above))} |"
            )
    head = "| contender | ε | log loss not below the prior's | tables |\n|---|---|---|---|"
    return "\n".join([head, *rows]) if rows else ""


def _every_table(lines: list[Line], score: str) -> str:
    found = means(lines, score)
    epsilons = sorted({epsilon for _, _, epsilon in found if epsilon})
    contenders = sorted({who for _, who, epsilon in found if epsilon}, key=lambda who: who != "quietgrad")
    references = sorted({who for _, who, epsilon in found if not epsilon and who != "prior"})
    rows = []
    for table in sorted({table for table, _, _ in found}):
        runs = [[found.get((table, who, epsilon)) for epsilon in epsilons] for who in contenders]
        cells = [table, *(" / ".join(_cell(run) for run in row) for row in runs)]
        cells += [_cell(found.get((table, who, 0.0))) for who in references]
        rows.append("| " + " | ".join(cells) + " |")
    shown = " / ".join(f"{epsilon:g}" for epsilon in epsilons)
    titles = ["table", *(f"{who}, ε = {shown}" for who in contenders), *references]
    head = "| " + " | ".join(titles) + " |\n|" + "---|" * len(titles)
    return f"{score}, in percent\n\n" + "\n".join([head, *rows]) if rows else ""


def _cell(value: tuple[float, int] | None) -> str:
    return "–" if value is None else f"{100 * value[0]:.1f}"
