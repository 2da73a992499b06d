"""`quietgrad predict` and `quietgrad export`: a finished model in use."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from quietgrad.lab.cli.options import Json
from quietgrad.lab.data.table_file import is_table_file, read_columns
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import to_json, write_whole
from quietgrad.lab.run.statement.model_card import FILE as CARD
from quietgrad.lab.serve import TrainedModel, load, to_hugging_face, to_onnx, to_safetensors
from quietgrad.tables import Skip

ModelFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of an export.")
]


def predict(
    run: ModelFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table, or a .npz file with x.")],
    *,
    out: Annotated[Path | None, typer.Option(help="The CSV to write; printed if left out.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="A column to copy, such as an identifier.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the class of each record of a file; it costs no privacy of the records trained on."""
    model = load(run)
    records, kept = _records(model, file, keep or [])
    shares = model.predict_proba(records)
    answers = {"prediction": model.names(shares)} | {
        f"p({name})": [f"{share:.6g}" for share in column]
        for name, column in zip(model.classes, shares.T.tolist(), strict=True)
    }
    columns = {**kept, **answers}
    if out is not None:
        write_whole(out, _csv(columns).encode())
    if as_json:
        typer.echo(
            to_json({"rows": len(shares), "out": None if out is None else str(out), "columns": columns})
        )
    else:
        typer.echo(
            _csv(columns) if out is None else f"{len(shares):,} predictions are in {out}.", nl=out is not None
        )


def export(
    run: ModelFolder,
    *,
    onnx: Annotated[bool, typer.Option("--onnx", help="model.onnx, from inputs to logits.")] = False,
    safetensors: Annotated[bool, typer.Option("--safetensors", help="Weights and facts.")] = False,
    hf: Annotated[bool, typer.Option("--hf", help="A folder for Hugging Face, with a model card.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write; RUN/export if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Write the model of a run for other programs; columns, classes and ε travel along."""
    if onnx + safetensors + hf != 1:
        raise LabError("Give one of --onnx, --safetensors and --hf.")
    model, folder = load(run), out or run / "export"
    if onnx:
        written = to_onnx(model, folder)
    elif safetensors:
        written = to_safetensors(model, folder)
    else:
        card = run / CARD
        written = to_hugging_face(model, folder, card.read_text(encoding="utf-8") if card.exists() else "")
    typer.echo(to_json({"out": str(written)}) if as_json else f"The model is in {written}.")


def _records(model: TrainedModel, file: Path, keep: list[str]) -> tuple[Any, dict[str, Any]]:
    if not file.is_file():
        raise LabError(f"{file} does not exist. Check the path.")
    if model.schema is not None and is_table_file(file):
        names = [name for name, column in model.schema.items() if not isinstance(column, Skip)]
        table = read_columns(file, [*names, *keep])
        return table, {name: table[name] for name in keep}
    if model.schema is None and file.suffix == ".npz" and not keep:
        with np.load(file, allow_pickle=False) as arrays:
            if "x" not in arrays.files:
                raise LabError(f"{file} has no array x. Store the records as x.")
            return arrays["x"], {}
    kind = "a table (.csv, .tsv, .jsonl, .parquet)" if model.schema is not None else "a .npz file with x"
    raise LabError(f"{file} is not what this model reads. Give {kind}.")


def _csv(columns: dict[str, Any]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()
