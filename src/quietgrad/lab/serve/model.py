"""A trained model with everything that belongs to it: preprocessing, columns, classes or bounds, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor, nn

from quietgrad._linear_probe.calibration import class_probabilities
from quietgrad._linear_probe.rule import TABLE_CLIP, TABLE_NOISE
from quietgrad.lab.run.metrics import logits_of
from quietgrad.lab.run.presets import QUIET
from quietgrad.tables import Schema


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What travels with a model.

    Args:
        config: of the run, as plain data.
        inputs: shape, type, scaling and classes, as in `split.json`.
        privacy: ε, δ, and whether ε covers the run.
    """

    config: dict[str, Any]
    inputs: dict[str, Any]
    privacy: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def served_schema(config: dict[str, Any]) -> Schema:
    """The columns that a model reads, of a config as plain data: all but the label and whose a record is."""
    data = config.get("data", {})
    beside = [name for name in (data.get("label", "label"), data.get("unit")) if name]
    return Schema(config["columns"]).without(*beside)


class TrainedModel(nn.Module):
    """From records to classes, or to a number.

        model = quietgrad.load("runs/patients")
        model.predict(frame)          # names of classes, or numbers
        model.predict_proba(frame)    # one column a class
        model(model.encode(frame))    # logits, or numbers: an ordinary module

    Formal guarantee: it holds what the run released and what the user stated, so using it costs no privacy.

    Attributes:
        schema: the columns that it reads, in their order; None for anything but a table.
        classes: their names, in the order of the logits; none where a number is predicted.
        target: bounds of the number that is predicted, None for classes.
        label: the column that it predicts, of a table.
    """

    def __init__(self, body: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.body, self.facts = body, facts
        data, columns = facts.config.get("data", {}), facts.config.get("columns", {})
        self.label: str | None = data.get("label", "label") if columns else None
        self.schema = served_schema(facts.config) if columns else None
        names = facts.inputs["classes"] or [str(number) for number in range(facts.inputs["num_classes"])]
        self.classes: tuple[str, ...] = tuple(names)
        bounds = facts.inputs.get("target")
        self.target: tuple[float, float] | None = None if bounds is None else (bounds[0], bounds[1])
        self.eval().requires_grad_(False)

    @property
    def epsilon(self) -> float | str:
        """ε of the run."""
        found: float | str = self.facts.privacy["epsilon"]
        return found

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of a table's encoded features, in the order of the inputs."""
        return () if self.schema is None else self.schema.feature_names

    def forward(self, inputs: Tensor) -> Float[Tensor, "n k"]:
        logits: Tensor = self.body(inputs)
        return logits

    def encode(self, records: Any) -> Tensor:
        """Turn records into the model's inputs.

        Args:
            records: a DataFrame, a mapping of columns or a list of mappings, for a table. Else an array: bytes are
                scaled as in training, anything else is taken as it is.
        """
        if self.schema is not None:
            return torch.from_numpy(self.schema.encode(records))
        values, inputs = np.asarray(records), self.facts.inputs
        shape = tuple(inputs["shape"])
        if values.shape[1:] != shape:
            raise ValueError(f"Expected records of shape {shape}, got {values.shape[1:]}. Reshape them.")
        if values.dtype == np.uint8 and inputs["mean"] is not None:
            mean, std = (torch.tensor(inputs[name]).view(-1, 1, 1) for name in ("mean", "std"))
            return (torch.tensor(values, dtype=torch.float32) / 255 - mean) / std
        return torch.tensor(values, dtype=getattr(torch, inputs["type"]))

    def predict_proba(self, records: Any) -> Float[ndarray, "n k"]:
        """Return the probability of each class for each record.

        Those of the linear probe on a table are corrected for the clip and the noise (`class_probabilities`).

        Raises:
            ValueError: the model predicts a number.
        """
        if self.target is not None:
            raise ValueError(f"The model predicts the number {self.label!r}, no classes. Call predict.")
        inputs = self.encode(records)
        if len(inputs) == 0:
            return np.zeros((0, len(self.classes)))
        logits = logits_of(self, inputs).double()
        shares: ndarray = (
            logits.softmax(1) if self._clip is None else class_probabilities(logits, self._clip, TABLE_NOISE)
        ).numpy()
        return shares

    @property
    def _clip(self) -> float | None:
        """Of a head on a table, whose bias is known; None for other models."""
        if self.schema is None or self.facts.config["method"]["name"] != QUIET:
            return None
        return TABLE_CLIP if self.facts.config["data"].get("unit") is None else math.inf

    def predict(self, records: Any, *, threshold: float | None = None) -> list[str] | Float64[ndarray, " n"]:
        """Return the most likely class of each record, or its number.

        Args:
            threshold: of two classes, say the second one from this probability on. Where it is rare, its share of
                all records finds more of it than ½ does.
        """
        if self.target is None:
            return self.names(self.predict_proba(records), threshold)
        inputs = self.encode(records)
        if len(inputs) == 0:
            return np.zeros(0)
        said: ndarray = logits_of(self, inputs)[:, 0].double().numpy()
        return said

    def names(self, shares: Float[ndarray, "n k"], threshold: float | None = None) -> list[str]:
        """Return the name of the largest entry of each row, or of what passes the threshold."""
        if threshold is None:
            best: Sequence[int] = shares.argmax(1).tolist()
        elif len(self.classes) == 2:
            best = (shares[:, 1] >= threshold).astype(int).tolist()
        else:
            raise ValueError(
                f"A threshold is for two classes, and there are {len(self.classes)}. Leave it out."
            )
        return [self.classes[place] for place in best]
