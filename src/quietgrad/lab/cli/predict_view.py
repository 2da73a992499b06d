"""Records that a model reads, and its answers as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from quietgrad.lab.data.table_file import is_table_file, read_columns
from quietgrad.lab.errors import LabError
from quietgrad.lab.serve import TrainedModel
from quietgrad.tables import Skip


def read_records(model: TrainedModel, file: Path, keep: list[str]) -> tuple[Any, dict[str, Any]]:
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


def check_threshold(model: TrainedModel, threshold: float | None) -> None:
    """Refuse a threshold that is none, before any record is read."""
    if threshold is not None and (len(model.classes) != 2 or not 0 <= threshold <= 1):
        kind = "a number" if model.target is not None else f"{len(model.classes)} classes"
        raise LabError(
            f"--threshold {threshold:g} is a probability of two classes, and this model predicts {kind}. Give a "
            "number from 0 to 1 for two classes, or leave it out."
        )


def answers_of(model: TrainedModel, records: Any, threshold: float | None) -> dict[str, list[str]]:
    """The columns of the output: classes and their probabilities, or numbers."""
    if model.target is not None:
        return {"prediction": [f"{number:.6g}" for number in model.predict(records)]}
    shares = model.predict_proba(records)
    return {"prediction": model.names(shares, threshold)} | {
        f"p({name})": [f"{share:.6g}" for share in column]
        for name, column in zip(model.classes, shares.T.tolist(), strict=True)
    }


def to_csv(columns: dict[str, Any]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()
