"""How a solved privacy budget looks: a table with a small plot, a picture."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from quietgrad.lab.run.privacy_budget import Budget


def show(solved: Budget, console: Console) -> None:
    """A table, a small plot, and what the numbers do not say."""
    table = Table(
        title=f"privacy budget: solved for the {solved.solved_for.replace('_', ' ')}", show_header=False
    )
    for name, value in _rows(solved):
        table.add_row(name, value)
    console.print(table)
    if math.isfinite(solved.epsilon) and solved.epsilon > 0:
        console.print(_sketch(solved.curve), highlight=False)
    for note in solved.notes:
        console.print(f"note: {note}", highlight=False)


def draw(solved: Budget, path: Path) -> None:
    """Epsilon over the steps, as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*zip(*solved.curve, strict=True))
    axes.set(xlabel="steps", ylabel=f"epsilon at delta={solved.delta:g}", ylim=(0, None))
    axes.set_title(f"noise multiplier {solved.noise_multiplier:.4g}, rate {solved.rate:.4g}")
    figure.savefig(path)


def _rows(solved: Budget) -> list[tuple[str, str]]:
    unit = 10.0**5
    shown = math.ceil(solved.noise_multiplier * unit) / unit  # rounded up: the number may be copied
    rows = [
        ("noise multiplier of a step", f"{shown:.5f}"),
        *((f"  on the {name}", f"{value:.4f}") for name, value in solved.release_multipliers.items()),
        (f"ε at δ = {solved.delta:g}", f"{solved.epsilon:.4f}"),
        ("ε by RDP alone", f"{solved.epsilon_rdp:.4f}"),
        ("advantage of any membership attack", f"{solved.attack_advantage:.4f} at most"),
        (
            f"members found at {solved.false_positives:.3g} false positives",
            f"{solved.found:.4f} at most",
        ),
        ("Poisson rate", f"{solved.rate:.6g}"),
        ("steps", f"{solved.steps}"),
        ("epochs", f"{solved.epochs:.4g}"),
    ]
    if solved.relative_noise is not None:
        rows.append(("noise of summed updates, of DP-SGD's", f"{solved.relative_noise:.3f}"))
    if solved.batch is not None:
        rows.append(("expected batch", f"{solved.batch:.6g}"))
    return rows


def _sketch(curve: list[tuple[int, float]], height: int = 6) -> str:
    """Epsilon over steps in text, a column per point."""
    top = curve[-1][1]
    lines = []
    for row in range(height, 0, -1):
        cells = "".join("*" if value / top > (row - 1) / height else " " for _, value in curve)
        lines.append(f"{top * row / height:8.3f} |{cells}")
    return "\n".join([*lines, f"{'epsilon':>8} +{'-' * len(curve)} {curve[-1][0]} steps"])
