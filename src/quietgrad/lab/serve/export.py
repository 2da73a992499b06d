"""Models in formats that other programs read. Columns, classes and ε travel along."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, to_json, write_whole
from quietgrad.lab.models.hf_folder import FolderClassifier
from quietgrad.lab.serve.loading import FACTS, WEIGHTS, model_weights, save_safetensors
from quietgrad.lab.serve.model import TrainedModel

ONNX = "model.onnx"


def to_safetensors(model: TrainedModel, folder: Path) -> Path:
    """Write weights and facts; `quietgrad.load` reads the folder."""
    make_folder(folder)
    save_safetensors(model_weights(model), folder / WEIGHTS)
    write_whole(folder / FACTS, to_json(model.facts.as_dict()).encode())
    return folder


def to_hugging_face(model: TrainedModel, folder: Path, card: str = "") -> Path:
    """Write a folder for the hub: weights, facts and a model card with the privacy statement.

    A model that came from a Hugging Face folder is written by `save_pretrained`, for `transformers` to read.
    """
    make_folder(folder)
    last = model.body.head if isinstance(model.body, nn.Sequential) else model.body
    if isinstance(last, FolderClassifier):
        last.classifier.save_pretrained(folder)  # type: ignore[operator]
        write_whole(folder / FACTS.replace("quietgrad", "privacy"), to_json(model.facts.as_dict()).encode())
    else:
        to_safetensors(model, folder)
    front = "---\nlibrary_name: quietgrad\ntags:\n- differential-privacy\n---\n"
    write_whole(folder / "README.md", f"{front}\n{_use(model)}\n{card}".encode())
    return folder


def to_onnx(model: TrainedModel, folder: Path) -> Path:
    """Write `model.onnx`: from encoded features to logits, or to the number, for any number of records.

    The file's metadata name features and classes. Tables are encoded by `Schema.encode`, whose statement is there too.
    """
    onnx = _onnx()
    make_folder(folder)
    inputs = model.facts.inputs
    example = torch.zeros(2, *inputs["shape"], dtype=getattr(torch, inputs["type"]))
    with _without_remarks_of_torch():
        program: Any = torch.onnx.export(
            model.eval(),
            (example,),
            input_names=["inputs"],
            output_names=["logits" if model.target is None else "prediction"],
            dynamic_shapes=({0: torch.export.Dim("records", min=1)},),
            dynamo=True,
            verbose=False,
        )
    written = program.model_proto
    facts: dict[str, Any] = {"features": list(model.feature_names), "classes": list(model.classes)}
    facts |= {
        "columns": None if model.schema is None else model.schema.as_dict(),
        "privacy": model.facts.privacy,
    }
    onnx.helper.set_model_props(written, {name: json.dumps(value) for name, value in facts.items()})
    write_whole(folder / ONNX, written.SerializeToString())
    return folder / ONNX


@contextmanager
def _without_remarks_of_torch() -> Iterator[None]:
    """Keep back what torch says of its own parts, such as operators of a torchvision that is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _onnx() -> Any:
    try:
        importlib.import_module("onnxscript")
        return importlib.import_module("onnx")
    except ImportError:
        raise LabError(
            "--onnx needs the packages onnx and onnxscript: pip install 'quietgrad[export]'."
        ) from None


def _use(model: TrainedModel) -> str:
    reads = "" if model.schema is None else f" It reads the columns {', '.join(model.schema)}."
    return (
        f"Predicts {', '.join(model.classes[:20]) or f'the number {model.label}'}.{reads}\n\n"
        '```python\nimport quietgrad\n\nmodel = quietgrad.load("FOLDER")\nmodel.predict(records)\n```\n'
    )
