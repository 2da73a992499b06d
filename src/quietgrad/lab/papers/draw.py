"""Pictures as PNG files."""

from __future__ import annotations

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
    "legend.frameon": False,
    "font.size": 9,
}
FEW = 3
"""So many curves leave room for a legend among them."""


def draw(finding: Finding, path: Path, title: str) -> Path | None:
    """All pictures of a finding side by side; nothing if it has none.

    Args:
        title: of pictures that have none of their own.
    """
    if not finding.pictures:
        return None
    crowded = any(len(picture.curves) > FEW for picture in finding.pictures)
    width = 6.4 if crowded else 4.6
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * len(finding.pictures), 3.2), layout="constrained")
        axes = figure.subplots(1, len(finding.pictures), squeeze=False)[0]
        for panel, picture in zip(axes, finding.pictures, strict=True):
            _panel(panel, picture, picture.title or title)
            if len(picture.curves) > 1:
                panel.legend(**({"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if crowded else {}))
        figure.savefig(path, dpi=110)
    return path


def _panel(panel: Axes, picture: Picture, title: str) -> None:
    for number, curve in enumerate(picture.curves):
        marker = "o" if len(curve.x) < 12 else None
        colour = PALETTE[number % len(PALETTE)]
        panel.plot(curve.x, curve.y, label=curve.label, color=colour, marker=marker, markersize=4)
    panel.set(title=title, xlabel=picture.x, ylabel=picture.y)
    if picture.log_x:
        panel.set_xscale("log")
    if picture.log_y:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(alpha=0.25)
