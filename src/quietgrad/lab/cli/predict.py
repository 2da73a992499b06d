"""`quietgrad predict` and `quietgrad export`: a finished model in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Json
from quietgrad.lab.errors import LabError

ModelFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of an export.")
]


def predict(
    run: ModelFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table, or a .npz file with x.")],
    *,
    out: Annotated[Path | None, typer.Option(help="The CSV to write; printed if left out.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="A column to copy, such as an identifier.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Of two classes, say the second from this probability on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the class or number of each record of a file; costs no ε."""
    from quietgrad.lab.cli.predict_view import answers_of, check_threshold, read_records, to_csv
    from quietgrad.lab.files import to_json, write_whole
    from quietgrad.lab.serve import load

    model = load(run)
    check_threshold(model, threshold)
    records, kept = read_records(model, file, keep or [])
    answers = answers_of(model, records, threshold)
    rows, columns = len(answers["prediction"]), {**kept, **answers}
    if out is not None:
        write_whole(out, to_csv(columns).encode())
    if as_json:
        typer.echo(to_json({"rows": rows, "out": None if out is None else str(out), "columns": columns}))
    else:
        typer.echo(
            to_csv(columns) if out is None else f"{rows:,} predictions are in {out}.",
            nl=out is not None,
        )


def export(
    run: ModelFolder,
    *,
    onnx: Annotated[bool, typer.Option("--onnx", help="model.onnx, from inputs to logits.")] = False,
    safetensors: Annotated[
        bool,
        typer.Option("--safetensors", help="model.safetensors, and quietgrad.json with columns and classes."),
    ] = False,
    hf: Annotated[bool, typer.Option("--hf", help="A folder for Hugging Face, with a model card.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write; RUN/export if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Export a run's model as ONNX or safetensors, or for the Hugging Face hub."""
    from quietgrad.lab.files import to_json
    from quietgrad.lab.run.statement.model_card import FILE as CARD
    from quietgrad.lab.serve import load, to_hugging_face, to_onnx, to_safetensors

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
