"""Pictures as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from quietgrad.lab.papers.finding import Finding
from quietgrad.lab.report.plots import PALETTE


def draw(finding: Finding, path: Path) -> Path | None:
    """All pictures of a finding side by side; nothing if it has none."""
    if not finding.pictures:
        return None
    style: Any = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "font.size": 9,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.6 * len(finding.pictures), 3.2), layout="constrained")
        axes = figure.subplots(1, len(finding.pictures), squeeze=False)[0]
        for panel, picture in zip(axes, finding.pictures, strict=True):
            for number, curve in enumerate(picture.curves):
                marker = "o" if len(curve.x) < 12 else None
                panel.plot(
                    curve.x, curve.y, label=curve.label, color=PALETTE[number % len(PALETTE)], marker=marker
                )
            panel.set(title=picture.title, xlabel=picture.x, ylabel=picture.y)
            panel.set_xscale("log" if picture.log_x else "linear")
            panel.set_yscale("log" if picture.log_y else "linear")
            panel.grid(alpha=0.25)
            if len(picture.curves) > 1:
                panel.legend()
        figure.savefig(path, dpi=110)
    return path
