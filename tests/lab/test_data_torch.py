"""Any torch Dataset as a part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from quietgrad.lab.data import DataError, from_datasets

INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(5))
LABELS = torch.arange(30) % 3
WHOLE = TensorDataset(INPUTS, LABELS)


class Squares(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(index**2) + 100), index % 3


def test_own_datasets_become_parts() -> None:
    parts = from_datasets(
        Subset(WHOLE, range(20)), Subset(WHOLE, range(20, 30)), num_classes=3, public=Squares()
    )
    torch.testing.assert_close(parts.private.tensors[0], INPUTS[:20])
    assert parts.public_inputs[:, 0].tolist() == [100, 101, 104, 109, 116]
    assert parts.public_labels is not None
    assert (parts.num_classes, parts.input_shape) == (3, (4,))


def test_public_inputs_may_come_without_labels() -> None:
    parts = from_datasets(WHOLE, Squares(), num_classes=3, public=TensorDataset(INPUTS + 50))
    assert parts.public_labels is None
    assert len(parts.public) == 30


def test_public_data_in_the_test_part_are_refused() -> None:
    with pytest.raises(DataError, match="public data overlap the test data: some inputs"):
        from_datasets(Squares(), WHOLE, num_classes=3, public=Subset(WHOLE, range(3)))


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(DataError, match="some labels of the private dataset are not among 0 to 1"):
        from_datasets(WHOLE, Squares(), num_classes=2)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (TensorDataset(INPUTS), "they have no label"),
        (TensorDataset(INPUTS, LABELS, LABELS), r"must be \(input, label\)"),
        (Subset(WHOLE, []), "test dataset is empty"),
        (TensorDataset(INPUTS[:, :3], LABELS), r"test inputs have shape \(3,\), private ones \(4,\)"),
        ([(torch.zeros(4), 0), (torch.zeros(5), 0)], "no tensors of one shape"),
        ([("a text", 0)], "no tensors of one shape"),
    ],
)
def test_unfit_datasets_are_refused(dataset: TensorDataset, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_datasets(WHOLE, dataset, num_classes=3)
