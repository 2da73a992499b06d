"""Figures of runs and comparisons, as PNG files or as SVG that takes the colours of the page around it."""

from __future__ import annotations

import html
import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quietgrad.lab.compare.comparison import NON_PRIVATE, ComparisonRow
from quietgrad.lab.formatting import method_title

INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
PALETTE = ("#3b82c4", "#d97706", "#2a9d6f", "#c2497d", "#8b6fd1", "#b08900", "#5b9aa0", "#a0522d")
"""Middle tones, readable on white and on black."""
GREY = "#9a9a9a"
WIDTH = 5.2
"""Inches, few: a telephone shows the whole figure, with letters that can still be read."""
Curves = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name → points with step, accuracy and ε."""
STYLE: Any = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
    "grid.color": "#888888",
    "grid.alpha": 0.25,
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "quietgrad",
}


@contextmanager
def _figure(height: float = 3.2) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def is_baseline(row: ComparisonRow) -> bool:
    """Whether a row is one of the two baselines, which have no budget."""
    return not 0 < row.target < math.inf


def method_colours(rows: Sequence[ComparisonRow]) -> dict[str, str]:
    """One colour for each method, the same in all figures of a page; baselines are grey."""
    private = dict.fromkeys(row.method for row in rows if not is_baseline(row))
    colours = {method: PALETTE[place % len(PALETTE)] for place, method in enumerate(private)}
    return colours | {row.method: GREY for row in rows if is_baseline(row)}


def leaderboard_bars(rows: Sequence[ComparisonRow]) -> Figure:
    """Accuracy of each method, the baselines in grey."""
    shown = sorted(rows, key=lambda row: row.accuracy)
    several = len({row.target for row in rows if not is_baseline(row)}) > 1
    with _figure(height=0.9 + 0.34 * len(shown)) as (figure, axes):
        labels = [_label(row, several) for row in shown]
        known = method_colours(rows)
        colours = [known[row.method] for row in shown]
        errors = [100 * row.std for row in shown] if any(row.std for row in shown) else None
        values = [100 * row.accuracy for row in shown]
        axes.barh(labels, values, xerr=errors, color=colours, ecolor=INK, height=0.66)
        for place, value in enumerate(values):
            beside = value + (errors[place] if errors else 0.0)
            axes.annotate(
                f"{value:.1f}", (beside, place), (4, 0), textcoords="offset points", va="center", fontsize=9
            )
        low = max(0.0, min(values) - 12)
        axes.set(xlabel="test accuracy (%)", xlim=(low, low + 1.12 * (max(values) - low)))
        axes.grid(axis="x")
        axes.set_axisbelow(True)
    return figure


def accuracy_against_epsilon(rows: Sequence[ComparisonRow]) -> Figure:
    """One line per method, the baselines as horizontal lines."""
    by_method: dict[str, list[ComparisonRow]] = {}
    colours = method_colours(rows)
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    with _figure(height=4.2) as (figure, axes):
        for method, points in by_method.items():
            if is_baseline(points[0]):
                # At the two ends, so that baselines of nearly the same accuracy can both be read.
                _horizontal(axes, method, 100 * points[0].accuracy, left=method == NON_PRIVATE)
                continue
            points = sorted(points, key=lambda row: row.target)
            values, errors = [100 * row.accuracy for row in points], [100 * row.std for row in points]
            axes.errorbar(
                [row.target for row in points],
                values,
                errors,
                marker="o",
                markersize=4,
                capsize=3,
                label=method_title(method),
                color=colours[method],
            )
        targets = sorted({row.target for row in rows if not is_baseline(row)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(targets, [f"{value:g}" for value in targets])
        axes.minorticks_off()
        axes.set(xlabel="ε", ylabel="test accuracy (%)")
        axes.grid()
        # Above the axes: "best" sees no baseline, and would lie on its line.
        figure.legend(fontsize=8, ncols=2, loc="outside upper left", frameon=False)
    return figure


def noise_bars(ratios: Mapping[str, float], colours: Mapping[str, str]) -> Figure:
    """Noise over signal of each method, the quietest first."""
    shown = sorted(ratios.items(), key=lambda item: -item[1])
    with _figure(height=0.9 + 0.34 * len(shown)) as (figure, axes):
        lengths, drawn = [value for _, value in shown], [colours[name] for name, _ in shown]
        axes.barh([method_title(name) for name, _ in shown], lengths, color=drawn, height=0.66)
        for place, (_, value) in enumerate(shown):
            axes.text(value, place, f" {value:.1f}", va="center", fontsize=9)
        axes.set(xlabel="noise / largest signal of a step (smaller is quieter)")
        axes.margins(x=0.12)
        axes.grid(axis="x")
        axes.set_axisbelow(True)
    return figure


def accuracy_curves(runs: Curves, colours: Mapping[str, str] | None = None) -> Figure:
    """Test accuracy over the steps."""
    with _figure() as (figure, axes):
        for name, points in runs.items():
            accuracies = [100 * value for value in _of("accuracy", points)]
            axes.plot(
                _of("step", points), accuracies, label=method_title(name), color=(colours or {}).get(name)
            )
        axes.set(xlabel="step", ylabel="test accuracy (%)")
        axes.grid()
        if len(runs) > 1:
            axes.legend(fontsize=8, loc="lower right")
    return figure


def spending_curves(runs: Curves, colours: Mapping[str, str] | None = None) -> Figure:
    """ε of what the ledger held, over the steps; runs without noise are left out."""
    with _figure() as (figure, axes):
        for name, points in runs.items():
            if all(math.isfinite(value) for value in _of("epsilon", points)):
                spent = _of("epsilon", points)
                axes.plot(
                    _of("step", points), spent, label=method_title(name), color=(colours or {}).get(name)
                )
        axes.set(xlabel="step", ylabel="ε of what was released so far", ylim=(0, None))
        axes.grid()
        if len(runs) > 1:
            axes.legend(fontsize=8, loc="lower right")
    return figure


def attacker(curve: Sequence[Mapping[str, float]]) -> Figure:
    """How many members the best attack can find, over how many outsiders it accuses wrongly."""
    wrong = [*(100 * point["false_positive_rate"] for point in curve), 100.0]
    found = [*(100 * (1 - point["false_negative_rate"]) for point in curve), 100.0]
    with _figure(height=3.8) as (figure, axes):
        axes.fill_between(wrong, found, 100, color=PALETTE[2], alpha=0.18)
        axes.plot(wrong, found, color=PALETTE[0], linewidth=2, label="no attack gets above this line")
        axes.plot([0, 100], [0, 100], color="#8a8a8a", linestyle=":", label="guessing")
        axes.annotate("impossible", (8, 92), fontsize=10)
        axes.set(
            xlabel="outsiders wrongly accused (%)",
            ylabel="members found (%)",
            xlim=(0, 100),
            ylim=(0, 101),
        )
        axes.grid()
        axes.legend(fontsize=8, loc="lower right")
    return figure


def _of(key: str, points: Sequence[Mapping[str, Any]]) -> list[float]:
    return [point[key] for point in points]


def to_svg(figure: Figure, alt: str) -> str:
    """An inline <svg> that says what it shows: text in the page's colour, no size of its own, nothing fetched."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    own = f"f{zlib.crc32(text.encode()):08x}-"  # figures on one page must not share names
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{own}", text)
    text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)
    return text.replace(INK, "currentColor")


def save_png(figure: Figure, path: Path) -> None:
    """For documents; the ink is almost black."""
    figure.savefig(path, dpi=150, facecolor="white")


def _horizontal(axes: Axes, name: str, value: float, *, left: bool) -> None:
    axes.axhline(value, color=GREY, linestyle=":", linewidth=1.4)
    place, side = ((0.0, value), "left") if left else ((1.0, value), "right")
    axes.annotate(name, place, xycoords=("axes fraction", "data"), va="bottom", ha=side, fontsize=8)


def _label(row: ComparisonRow, several: bool) -> str:
    name = method_title(row.method)
    return name if is_baseline(row) or not several else f"{name}, ε = {row.target:g}"
