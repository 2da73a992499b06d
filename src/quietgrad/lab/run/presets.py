"""Good settings of each method, so that a comparison never gives one learning rate to all.

`presets.toml` is the lab's one list of methods: its keys are `quietgrad.methods.__all__`, in the order of tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from quietgrad.lab.errors import LabError, nearest
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.config_sections import MethodConfig, TrainingConfig
from quietgrad.lab.run.own_methods import GROUP

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


RECIPE = ("optimizer", "lr", "momentum", "weight_decay", "schedule", "drops", "drop_factor", "warmup")
"""The keys of a training section that belong to the method."""
QUIET = "quiet"
"""The recipe beside the methods: it makes features, model and settings of its own."""


WARM = "dp_sgd_warm"
"""DP-SGD that starts from a model trained on the public examples with their labels, which quiet does without."""


def presets() -> dict[str, dict[str, Any]]:
    """method → {"method": options, "training": settings, "compared": whether a comparison takes it by itself}."""
    loaded: dict[str, dict[str, Any]] = tomllib.loads(
        (files("quietgrad.lab.run") / "presets.toml").read_text()
    )
    return loaded


def compared_methods() -> list[str]:
    """Return the methods of a comparison that names none."""
    return [name for name, preset in presets().items() if preset.get("compared", False)]


def with_method(base: Config, name: str, epsilon: float | None = None) -> Config:
    """Return the config with another method at its preset; the config's own method keeps its own settings.

    Args:
        epsilon: the budget, for presets that depend on it.
    """
    if name == base.method.name and base.method.options:
        return base
    if name == QUIET:  # its rule decides everything
        return parse_config(base.plain() | {"method": {"name": QUIET}})
    if name == WARM:
        return _warm(with_method(base, "dp_sgd", epsilon))
    known = presets()
    if ":" in name or name in {entry.name for entry in entry_points(group=GROUP)}:
        return parse_config(
            base.plain() | {"method": {"name": name}}
        )  # with its own defaults and the config's plan
    if name not in known:
        all_of_them = [QUIET, WARM, *known]
        raise LabError(
            f"Unknown method {name!r}{nearest(name, all_of_them)}. Known: {', '.join(all_of_them)}."
        )
    method = MethodConfig(name=name, **known[name]["method"])
    training = recipe(base.training, known[name]["training"] | _at_budget(known[name], epsilon))
    return parse_config(base.plain() | {"method": method.model_dump(exclude_none=True), "training": training})


def recipe(training: TrainingConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of `training` (epochs, batch, seed) with a recipe of its own: a learning rate means something only with
    its optimizer, its momentum and its schedule, so they change together."""
    return training.model_dump(exclude=set(RECIPE)) | dict(own)


def _warm(config: Config) -> Config:
    data = config.data.model_dump() | {"public_labels": True}
    training = config.training.model_dump() | {"warm_start": "public"}
    return parse_config(config.plain() | {"data": data, "training": training})


def _at_budget(preset: dict[str, Any], epsilon: float | None) -> dict[str, Any]:
    chosen = [row for row in preset.get("below", []) if epsilon is not None and epsilon < row["epsilon"]]
    return {key: value for key, value in chosen[-1].items() if key != "epsilon"} if chosen else {}
