"""What a task is made of: private, public and test examples, and how they were separated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad.tables import Schema


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The three disjoint parts of a task.

    Args:
        private: (inputs, labels); what differential privacy protects.
        public: (inputs,) or, if the task says so, (inputs, labels); may be empty.
        test: (inputs, labels); never seen in training.
        num_classes: labels are 0 ... num_classes - 1; 0 where they are numbers.
        input_shape: shape of one input, (channels, height, width), (features,) or (tokens,).
        record: where the examples came from and how they were split, for the report.
        users: whose each private record is, if the task protects users.
        classes: their names, empty where they are numbers.
        schema: the columns of a table, whose features are the inputs.
        target: bounds of the number that is predicted; labels are scaled to [−1, 1], NaN where one is missing.
    """

    private: TensorDataset
    public: TensorDataset
    test: TensorDataset
    num_classes: int
    input_shape: tuple[int, ...]
    record: Mapping[str, object]
    users: ndarray | None = None
    classes: tuple[str, ...] = ()
    schema: Schema | None = None
    target: tuple[float, float] | None = None

    @property
    def units(self) -> int:
        """N: private records, or the users whose they are."""
        return len(self.private) if self.users is None else len(np.unique(self.users))

    @property
    def sizes(self) -> str:
        """How many rows each part has, and which parts ε says nothing about."""
        test = f"{len(self.test):,} for testing"
        if self.users is not None:  # the number of their records is private
            return f"{self.units:,} users private, {test} (not protected by ε)"
        if not len(self.test) and not len(self.public):
            return f"{len(self.private):,} rows: all private, none for testing"
        public = f"{len(self.public):,} public, " if len(self.public) else ""
        rows = len(self.private) + len(self.public) + len(self.test)
        unprotected = "public and test rows are not protected" if public else "not protected"
        return f"{rows:,} rows: {len(self.private):,} private, {public}{test} ({unprotected} by ε)"

    @property
    def public_inputs(self) -> Tensor:
        """Inputs of the public part, shape [m, *input_shape]."""
        return self.public.tensors[0]

    @property
    def public_labels(self) -> Tensor | None:
        """Labels of the public part, None unless the task has labelled public data."""
        return self.public.tensors[1] if len(self.public.tensors) == 2 else None
