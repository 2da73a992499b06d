"""The task of a config: its data as private, public and test parts, with features computed once if it says so."""

from __future__ import annotations

from pathlib import Path

from quietgrad.lab.data import Parts, load
from quietgrad.lab.errors import LabError
from quietgrad.lab.models import ScatterNet, precompute
from quietgrad.lab.models.shapes import image_shape
from quietgrad.lab.run.config import Config


def load_task(config: Config, *, data_dir: Path | None = None) -> Parts:
    """Read the data that the config names and split it."""
    wanted = config.data.model_dump(exclude={"features"})
    parts = load(data_dir=data_dir, **wanted)
    return parts if config.data.features == "none" else scattered(parts, config)


def scattered(parts: Parts, config: Config) -> Parts:
    """ScatterNet's features in the place of the images: fixed filters, so they tell of their own record only."""
    if config.augment.active:
        raise LabError("Views are made of images, not of features. Leave out [augment] or data.features.")
    _, height, width = image_shape(parts.input_shape, "data.features = scatter", smallest=8)
    return precompute(parts, ScatterNet(height, width))
