"""A small task of a user's own: 3 classes, 8 features, 240 records, and a config of 15 lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CONFIG = """\
[data]
name = "{data}"
test = 48
[model]
name = "mlp"
hidden = [16]
[privacy]
epsilon = 3.0
[method]
name = "dp_sgd"
clip = 1.0
[training]
epochs = 2
batch = 24
lr = 0.5
"""


def write_data(folder: Path, **changes: np.ndarray) -> Path:
    """Three clouds of points that a linear model can tell apart; `changes` replaces or adds arrays."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=240)
    inputs = (rng.normal(size=(240, 8)) + 2.5 * np.eye(3, 8)[labels]).astype(np.float32)
    arrays = {"x": inputs, "y": labels, **changes}
    file = folder / "own.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file


def write_config(folder: Path, *, data: Path | str | None = None, text: str = CONFIG) -> Path:
    """The config of a run on the data, written if there are none yet."""
    file = folder / "own.toml"
    file.write_text(text.format(data=data or write_data(folder)))
    return file


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, to see that nothing was changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
