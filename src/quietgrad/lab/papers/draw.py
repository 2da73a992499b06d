"""Pictures as PNG files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from quietgrad.lab.papers.finding import Finding, Picture
from quietgrad.lab.report.plots import PALETTE

STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "figure.titlesize": 10,
    "legend.frameon": False,
    "font.size": 9,
}
FEW = 3
"""So many curves leave room for a legend among them."""
DASHES = ("-", "--", ":")


def draw(finding: Finding, path: Path, title: str) -> Path | None:
    """All pictures of a finding side by side; nothing if it has none.

    Args:
        title: above all of them.
    """
    if not finding.pictures:
        return None
    crowded = any(len(picture.curves) > FEW for picture in finding.pictures)
    width = 6.4 if crowded else 4.6
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * len(finding.pictures), 3.2), layout="constrained")
        figure.suptitle(title)
        axes = figure.subplots(1, len(finding.pictures), squeeze=False)[0]
        for panel, picture in zip(axes, finding.pictures, strict=True):
            _panel(panel, picture)
            if len(picture.curves) > 1:
                panel.legend(**({"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if crowded else {}))
        figure.savefig(path, dpi=110)
    return path


def _panel(panel: Axes, picture: Picture) -> None:
    looks = _looks([curve.label for curve in picture.curves])
    for curve, (colour, dash) in zip(picture.curves, looks, strict=True):
        marker = "o" if len(curve.x) < 12 else None
        panel.plot(curve.x, curve.y, label=curve.label, color=colour, ls=dash, marker=marker, markersize=4)
    panel.set(title=picture.title, xlabel=picture.x, ylabel=picture.y)
    if picture.log_x:
        panel.set_xscale("log")
    if picture.log_y:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(alpha=0.25)


def _looks(labels: Sequence[str]) -> list[tuple[str, str]]:
    """(colour, dash) of each curve: many curves named "method, setting" have a dash a method and a colour a setting."""
    parts = [tuple(re.split(r"[,:] ", label, maxsplit=1)) for label in labels]
    names = list(dict.fromkeys(part[0] for part in parts))
    settings = list(dict.fromkeys(part[-1] for part in parts))
    crossed = len(labels) > FEW and len(names) * len(settings) == len(labels)
    if not crossed or min(len(names), len(settings)) > len(DASHES):
        return [(PALETTE[number % len(PALETTE)], "-") for number in range(len(labels))]
    if len(names) > len(settings):
        names, settings, parts = settings, names, [part[::-1] for part in parts]
    return [(PALETTE[settings.index(part[-1])], DASHES[names.index(part[0])]) for part in parts]
