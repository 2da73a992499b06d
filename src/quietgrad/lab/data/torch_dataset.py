"""Any map-style torch Dataset as a part."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.splitting import check_given_public


@runtime_checkable
class MapDataset(Protocol):
    """What torch calls a map-style Dataset: items by number, and a length."""

    def __getitem__(self, index: int, /) -> object: ...

    def __len__(self) -> int: ...


def from_datasets(
    private: MapDataset, test: MapDataset, *, num_classes: int, public: MapDataset | None = None
) -> Parts:
    """Parts from the user's own datasets, whose items are (input, label).

    Each item is read once, so a random transform is drawn once: augment in training instead.

    Args:
        private: what is protected.
        test: evaluated on; must have no content in common with the public part.
        num_classes: labels are 0 ... num_classes - 1.
        public: items (input, label), (input,) or input; refused if most of them are private ones.
    """
    private_part, test_part = (
        _labelled(_stacked(data, part), part, num_classes)
        for data, part in ((private, "private"), (test, "test"))
    )
    inputs = private_part.tensors[0]
    public_part = TensorDataset(inputs[:0]) if public is None else TensorDataset(*_stacked(public, "public"))
    if len(public_part.tensors) == 2:
        public_part = _labelled(list(public_part.tensors), "public", num_classes)
    for part, data in (("test", test_part), ("public", public_part)):
        if data.tensors[0].shape[1:] != inputs.shape[1:]:
            raise DataError(
                f"{part} inputs have shape {tuple(data.tensors[0].shape[1:])}, private ones "
                f"{tuple(inputs.shape[1:])}. Transform all datasets alike."
            )
    check_given_public(public_part.tensors[0].numpy(), test_part.tensors[0].numpy())
    return Parts(
        private=private_part,
        public=public_part,
        test=test_part,
        num_classes=num_classes,
        input_shape=tuple(inputs.shape[1:]),
        record={
            "data": type(private).__name__,
            "private": len(private_part),
            "public": len(public_part),
            "test": len(test_part),
            "public_labels": len(public_part.tensors) == 2,
            "split": "given by the user; public data share no content with the test part",
            "normalisation": "by the user's dataset",
        },
    )


def _stacked(dataset: MapDataset, part: str) -> list[Tensor]:
    """The items' inputs, and their labels if they have any, as tensors."""
    items = [dataset[row] for row in range(len(dataset))]
    if not items:
        raise DataError(f"the {part} dataset is empty. Pass one with at least one item.")
    rows = [item if isinstance(item, (tuple, list)) else (item,) for item in items]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) not in (1, 2):
        raise DataError(f"items of the {part} dataset must be (input, label). Wrap the dataset accordingly.")
    try:
        inputs = torch.stack([torch.as_tensor(row[0]) for row in rows])
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"inputs of the {part} dataset are no tensors of one shape ({type(error).__name__}). Add a transform."
        ) from None
    inputs = inputs.float() if inputs.is_floating_point() else inputs.long()
    if len(rows[0]) == 1:
        return [inputs]
    try:
        return [inputs, torch.tensor([int(row[1]) for row in rows])]
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        raise DataError(
            f"labels of the {part} dataset are no whole numbers ({type(error).__name__}). Number them from 0."
        ) from None


def _labelled(tensors: list[Tensor], part: str, num_classes: int) -> TensorDataset:
    if len(tensors) != 2:
        raise DataError(f"items of the {part} dataset must be (input, label), they have no label.")
    low, high = int(tensors[1].min()), int(tensors[1].max())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"some labels of the {part} dataset are not among 0 to {num_classes - 1}. "
            "Renumber the labels from 0 or correct num_classes."
        )
    return TensorDataset(*tensors)
