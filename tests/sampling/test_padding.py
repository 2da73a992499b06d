"""Records of unequal length: padded and cut to stated lengths, whatever they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quietgrad as qg

TEXTS = [(torch.arange(1, 1 + length), length % 3) for length in range(1, 40)]


def test_records_of_every_kind_are_padded_and_cut() -> None:
    x, y = qg.pad_collate(3)([(torch.tensor([1, 2, 3, 4]), 0), (torch.tensor([5]), 1)])
    assert x.tolist() == [[1, 2, 3], [5, 0, 0]]
    assert y.tolist() == [0, 1]
    (series,) = qg.pad_collate(2, padding=-1.0)(
        [(np.ones((1, 2), np.float32),), (np.zeros((3, 2), np.float32),)]
    )
    assert series.tolist() == [[[1, 1], [-1, -1]], [[0, 0], [0, 0]]]
    assert series.dtype == torch.float32
    assert qg.pad_collate(2)([torch.ones(1), torch.ones(3)]).tolist() == [[1, 0], [1, 1]]
    assert qg.pad_collate("longest")([[1, 2], [3]]).tolist() == [[1, 2], [3, 0]]


def test_dictionaries_have_padding_of_their_own() -> None:
    records = [
        {"input_ids": [7, 8], "attention_mask": [1, 1], "labels": [7, 8], "name": "a", "weight": 0.5},
        {"input_ids": [9], "attention_mask": [1], "labels": [9], "name": "b", "weight": 1.5},
    ]
    batch = qg.pad_collate(3, padding={"labels": -100})(records)
    assert batch["input_ids"].tolist() == [[7, 8, 0], [9, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 8, -100], [9, -100, -100]]
    assert batch["name"] == ["a", "b"]
    assert batch["weight"].tolist() == [0.5, 1.5]


def test_a_mask_says_what_is_real_and_fields_what_is_padded() -> None:
    records = [({"x": torch.ones(2, 1)}, torch.ones(2)), ({"x": torch.ones(5, 1)}, torch.zeros(2))]
    nested, features, mask = qg.pad_collate(3, fields=["x"], mask=True)(records)
    assert nested["x"].shape == (2, 3, 1)
    assert features.shape == (2, 2)
    assert mask.tolist() == [[True, True, False], [True, True, True]]
    batch = qg.pad_collate(2, mask=True)([{"x": [1]}, {"x": []}])
    assert batch["mask"].tolist() == [[True, False], [False, False]]


def test_records_of_length_zero_have_no_say_about_types() -> None:
    assert qg.pad_collate(2)([[], [0.5]]).tolist() == [[0, 0], [0.5, 0]]
    assert qg.pad_collate(2)([torch.zeros(0, 3), torch.zeros(0, 3)]).shape == (2, 2, 3)
    assert qg.pad_collate("longest")([[], []]).shape == (2, 0)


@pytest.mark.parametrize("pad_to", [0, -3, 1.5, (), (8, 0), "most"])
def test_what_is_no_length_is_refused(pad_to: Any) -> None:
    with pytest.raises(ValueError, match="pad_to"):
        qg.PoissonBatches(TEXTS, rate=0.5, steps=1, pad_to=pad_to)


def test_an_error_about_unequal_records_states_no_size() -> None:
    tables = [(torch.ones(2, 3), 0), (torch.ones(2, 4), 0)] * 8
    for batches in (
        qg.PoissonBatches(TEXTS, rate=0.9, steps=1),
        qg.PoissonBatches(tables, rate=0.9, steps=1, pad_to=2),
    ):
        batch = next(iter(batches))
        with pytest.raises(ValueError, match="Records") as caught:
            next(batch.split(16))
        assert not any(str(number) in str(caught.value) for number in (3, 4, 39))
        assert caught.value.__cause__ is caught.value.__context__ is None


def test_every_micro_batch_has_the_stated_length() -> None:
    batches = qg.PoissonBatches(TEXTS, rate=0.3, steps=20, pad_to=16)
    widths = {x.shape[1] for batch in batches for x, _ in batch.split(4)}
    assert widths == {16}


def test_records_of_one_length_class_are_together() -> None:
    batches = qg.PoissonBatches(TEXTS, rate=0.9, steps=5, pad_to=[32, 8])
    for batch in batches:
        rows = 0
        for x, _ in batch.split(4):
            lengths = (x > 0).sum(1)
            assert x.shape[1] == (8 if int(lengths[0]) <= 8 else 32)
            assert bool((lengths <= 8).all()) == (x.shape[1] == 8)
            rows += len(x)
        assert rows == len(batch)


def test_classes_need_poisson_batches_of_records() -> None:
    with pytest.raises(ValueError, match="PoissonBatches"):
        qg.pad_collate([8, 16])(TEXTS)
    with pytest.raises(ValueError, match="unit="):
        qg.PoissonBatches(
            TEXTS, rate=0.5, steps=1, pad_to=[8, 16], unit=list(range(len(TEXTS))), most_records=1
        )
    users = qg.PoissonBatches(TEXTS, rate=0.9, steps=1, pad_to=8, unit=[0, 1, 2] * 13, most_records=2)
    assert {x.shape[1] for x, _ in next(iter(users)).split(8)} <= {8}


def test_two_statements_about_padding_are_refused() -> None:
    def own(records: list[Any]) -> list[Tensor]:
        raise AssertionError(f"{len(records)} records were read")

    for collate in (own, qg.pad_collate(32)):
        with pytest.raises(ValueError, match="Leave one of them out"):
            qg.PoissonBatches(TEXTS, rate=0.5, steps=1, pad_to=16, collate_fn=collate)
    stated = qg.PoissonBatches(TEXTS, rate=0.5, steps=1, pad_to="longest", collate_fn=own)
    assert stated.padding.follows_longest
    assert stated.collate_fn is own
    assert qg.PoissonBatches(TEXTS, rate=0.5, steps=1, collate_fn=qg.pad_collate(32)).padding.lengths == (32,)
