"""`quietgrad explain`: what each layer and each method would cost, before training."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json

Layers: TypeAlias = Annotated[
    bool, typer.Option("--layers", help="Also the algorithm, time and memory of each layer.")
]


def explain(
    config: ConfigFile,
    *,
    changes: Changes = None,
    layers: Layers = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Recommend a method, and show what each one costs, before training."""
    from rich.console import Console

    from quietgrad.lab.cli.explain_view import show, show_quiet
    from quietgrad.lab.files import to_json
    from quietgrad.lab.run.config import load_config
    from quietgrad.lab.run.linear_probe_preview import LinearProbePlan, explain_linear_probe
    from quietgrad.lab.run.presets import QUIET
    from quietgrad.lab.run.preview import Explained, explain_config

    loaded = load_config(config, changes)
    explained: Explained | LinearProbePlan
    if loaded.method.name == QUIET:
        explained = explain_linear_probe(loaded, data_dir=data_dir)
    else:
        explained = explain_config(loaded, name=str(config), data_dir=data_dir)
    if as_json:
        typer.echo(to_json(explained.as_dict()))
    elif isinstance(explained, LinearProbePlan):
        show_quiet(explained, Console())
    else:
        show(explained, Console(), layers=layers)
