"""What a task is made of: private, public and test examples, and how they were separated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy import ndarray
from torch import Tensor
from torch.utils.data import TensorDataset


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The three disjoint parts of a task.

    Args:
        private: (inputs, labels); what differential privacy protects.
        public: (inputs,) or, if the task says so, (inputs, labels); may be empty.
        test: (inputs, labels); never seen in training.
        num_classes: labels are 0 ... num_classes - 1.
        input_shape: shape of one input, (channels, height, width), (features,) or (tokens,).
        record: where the examples came from and how they were split, for the report.
        users: whose each private record is, if the task protects users.
    """

    private: TensorDataset
    public: TensorDataset
    test: TensorDataset
    num_classes: int
    input_shape: tuple[int, ...]
    record: Mapping[str, object]
    users: ndarray | None = None

    @property
    def public_inputs(self) -> Tensor:
        """Inputs of the public part, shape [m, *input_shape]."""
        return self.public.tensors[0]

    @property
    def public_labels(self) -> Tensor | None:
        """Labels of the public part, None unless the task has labelled public data."""
        return self.public.tensors[1] if len(self.public.tensors) == 2 else None
