"""A trained model with everything that belongs to it: preprocessing, columns, classes, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from quietgrad.lab.run.metrics import logits_of
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


class TrainedModel(nn.Module):
    """From records to classes.

        model = quietgrad.load("runs/patients")
        model.predict(frame)          # names of classes
        model.predict_proba(frame)    # one column a class
        model(model.encode(frame))    # logits, an ordinary module

    Formal guarantee: it holds what the run released and what the user stated, so using it costs no privacy.

    Attributes:
        schema: the columns that it reads, in their order; None for anything but a table.
        classes: their names, in the order of the logits.
        label: the column that it predicts, of a table.
    """

    def __init__(self, body: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.body, self.facts = body, facts
        data, columns = facts.config.get("data", {}), facts.config.get("columns", {})
        self.label: str | None = data.get("label", "label") if columns else None
        beside = [name for name in (self.label, data.get("unit")) if name]
        self.schema = Schema(columns).without(*beside) if columns else None
        names = facts.inputs["classes"] or [str(number) for number in range(facts.inputs["num_classes"])]
        self.classes: tuple[str, ...] = tuple(names)
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
        """Return the probability of each class for each record."""
        inputs = self.encode(records)
        if len(inputs) == 0:
            return np.zeros((0, len(self.classes)))
        shares: ndarray = logits_of(self, inputs).double().softmax(1).numpy()
        return shares

    def predict(self, records: Any) -> list[str]:
        """Return the name of the most likely class for each record."""
        return self.names(self.predict_proba(records))

    def names(self, shares: Float[ndarray, "n k"]) -> list[str]:
        """Return the name of the largest entry of each row."""
        best: Sequence[int] = shares.argmax(1).tolist()
        return [self.classes[place] for place in best]
