"""Models from the folder of a run, or from what `quietgrad export` wrote. No data are read."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._linear_probe.recipe import zero_head
from quietgrad.features.table_rows import TableRows
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import number, read_json
from quietgrad.lab.models import build
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.linear_probe import FEATURES, checked_options, make_encoder, room_for
from quietgrad.lab.run.presets import QUIET
from quietgrad.lab.run.table_features import ToTarget, numbers_of, table_features
from quietgrad.lab.run.table_probe import TABLE as KEPT_TABLE
from quietgrad.lab.run.task import feature_encoder
from quietgrad.lab.serve.model import ModelFacts, TrainedModel, served_schema

FACTS, WEIGHTS = "quietgrad.json", "model.safetensors"
HEAD, RESCALE, TABLE = "head.", "rescale.", "table."


def load(path: str | Path) -> TrainedModel:
    """Load the model of a finished run, or one that `quietgrad export` wrote.

    Args:
        path: the folder.

    Raises:
        LabError: the run is not finished, or was made by a version that kept too little.
    """
    folder = Path(path)
    if (folder / FACTS).exists():
        return _exported(folder)
    run = RunFolder(folder)
    config, split, results = run.config, run.read("split.json"), run.read("results.json")
    if "inputs" not in split:
        raise LabError(
            f"{folder} was made by a version that did not keep what its inputs are. Train it again."
        )
    privacy = {
        "epsilon": number(results["epsilon"]),
        "delta": results["delta"],
        "covered": results["covered"],
    }
    facts = ModelFacts(config=config.plain(), inputs=split["inputs"], privacy=privacy)
    return assemble_model(facts, _weights(run))


def assemble_model(facts: ModelFacts, weights: Mapping[str, Tensor]) -> TrainedModel:
    """Build the model and fill it: `head.`, and for the linear probe `rescale.` or `table.`"""
    config = parse_config(facts.config)
    steps = _probe_steps(config, facts, weights) if config.method.name == QUIET else _frozen(config, facts)
    outputs = max(1, facts.inputs["num_classes"])
    if config.method.name == QUIET:
        head: nn.Module = zero_head(weights[f"{HEAD}weight"].shape[1], outputs)
    else:
        head = build(config.model.name, _shape_after(steps, facts), outputs, **config.model.options)
    try:
        head.load_state_dict(_without(weights, HEAD))
    except RuntimeError:
        raise LabError("The weights are of another model. Put back those of this run.") from None
    target = facts.inputs.get("target")
    last = {} if target is None else {"target": ToTarget(*target)}
    return TrainedModel(nn.Sequential(OrderedDict(steps | {"head": head} | last)), facts)


def _frozen(config: Config, facts: ModelFacts) -> dict[str, nn.Module]:
    """The frozen encoder of data.features, if there is one."""
    fixed = feature_encoder(config, tuple(facts.inputs["shape"]))
    return {} if fixed is None else {"frozen": fixed}


def _probe_steps(config: Config, facts: ModelFacts, weights: Mapping[str, Tensor]) -> dict[str, nn.Module]:
    """What the linear probe does before its head."""
    if config.columns:
        rows, last = table_features(served_schema(config.plain()), _without(weights, TABLE))
        return {"rows": rows, "rescale": last}
    steps = _frozen(config, facts)
    rescale = room_for(_without(weights, RESCALE))
    rescale.load_state_dict(_without(weights, RESCALE))
    return steps | {"encoder": _encoder(config, _shape_after(steps, facts)), "rescale": rescale}


def model_weights(model: TrainedModel) -> dict[str, Tensor]:
    """Return what `assemble_model` takes."""
    parts = dict(model.body.named_children())
    found = {f"{HEAD}{name}": value for name, value in parts["head"].state_dict().items()}
    rows = parts.get("rows")
    if isinstance(rows, TableRows):
        found |= {f"{TABLE}{name}": value for name, value in numbers_of(rows, parts["rescale"]).items()}
    elif "rescale" in parts:
        found |= {f"{RESCALE}{name}": value for name, value in parts["rescale"].state_dict().items()}
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def _exported(folder: Path) -> TrainedModel:
    stored = read_json(folder / FACTS)
    if not isinstance(stored, dict) or set(stored) != {"config", "inputs", "privacy"}:
        raise LabError(f"{folder / FACTS} is not of a model. Export it again.")
    return assemble_model(ModelFacts(**stored), _safetensors().load_file(folder / WEIGHTS))


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        raise LabError("This needs the package safetensors: pip install 'quietgrad[export]'.") from None


def save_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors and nothing else: a file that runs no code when it is read."""
    _safetensors().save_file(dict(weights), path)


def _weights(run: RunFolder) -> dict[str, Tensor]:
    saved = run.load("model.pt")
    if saved is None:
        raise LabError(
            f"{run.path} has no model.pt: the run did not finish. Go on with quietgrad train --resume."
        )
    found = {f"{HEAD}{name}": value for name, value in saved.items()}
    features = run.load(FEATURES)
    for kind, prefix in ((KEPT_TABLE, TABLE), ("rescale", RESCALE)):
        found |= {f"{prefix}{name}": value for name, value in (features or {}).get(kind, {}).items()}
    return found


def _encoder(config: Config, shape: tuple[int, ...]) -> nn.Module:
    options = checked_options(config)
    return make_encoder(options.encoder, shape, mirrored=options.mirrored)


def _shape_after(steps: Mapping[str, nn.Module], facts: ModelFacts) -> tuple[int, ...]:
    """The shape of a record after a frozen encoder, if there is one."""
    shape = tuple(facts.inputs["shape"])
    if not steps:
        return shape
    with torch.no_grad():
        out: Tensor = steps["frozen"].eval()(
            torch.zeros(1, *shape, dtype=getattr(torch, facts.inputs["type"]))
        )
    return tuple(out.shape[1:])


def _without(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
