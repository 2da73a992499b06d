"""Parameter groups: each parameter in exactly one, basis vectors shared out by √size."""

from __future__ import annotations

import math

import pytest
import torch

from quietgrad._gradients.space import Shapes
from quietgrad._representations.subspace.partition import group_sizes, partition, share_rank

SPACE: Shapes = {
    "stem.weight": torch.Size((16, 3, 3, 3)),
    "stage1.0.weight": torch.Size((16, 16, 3, 3)),
    "stage1.1.weight": torch.Size((16, 16, 3, 3)),
    "stage2.0.weight": torch.Size((32, 16, 3, 3)),
    "head.weight": torch.Size((10, 32)),
    "head.bias": torch.Size((10,)),
}


def test_by_module() -> None:
    groups = partition(SPACE, "modules")
    assert groups["stage1"] == ("stage1.0.weight", "stage1.1.weight")
    assert list(groups) == ["stem", "stage1", "stage2", "head"]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_equal_parts_are_whole_blocks_of_about_equal_size(parts: int) -> None:
    groups = partition(SPACE, parts)
    assert [name for names in groups.values() for name in names] == list(SPACE)
    sizes = group_sizes(SPACE, groups)
    assert len(sizes) == parts
    assert max(sizes.values()) <= sum(sizes.values()) / parts + max(shape.numel() for shape in SPACE.values())


def test_own_groups_name_parameters_or_modules() -> None:
    groups = partition(SPACE, {"body": ["stem", "stage1", "stage2.0.weight"], "rest": ["head"]})
    assert groups["rest"] == ("head.weight", "head.bias")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"body": ["stem", "stage1", "stage2"]}, "'head.weight' is in no group"),
        (
            {"a": ["stem", "stage1", "stage2", "head"], "b": ["head.bias"]},
            r"'head.bias' is in the groups \['a', 'b'\]",
        ),
        ({"a": ["stem", "stage1", "stage2", "head"], "b": ["stage"]}, r"\['b'\] match none"),
        (0, "groups >= 1"),
        ("layers", "groups >= 1"),
        (True, "groups >= 1"),
    ],
)
def test_groups_that_are_no_partition_are_refused(groups: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(SPACE, groups)  # type: ignore[arg-type]


def test_vectors_are_shared_by_the_square_root_of_the_size() -> None:
    sizes = {"a": 100, "b": 400, "c": 1600}
    shares = share_rank(70, sizes)
    assert sum(shares.values()) == 70
    for name, size in sizes.items():
        assert abs(shares[name] - 70 * math.sqrt(size) / 70) <= 1


def test_a_small_group_gets_no_more_than_its_size_and_no_less_than_one() -> None:
    assert share_rank(50, {"tiny": 2, "large": 10_000, "small": 3}) == {"tiny": 1, "large": 48, "small": 1}
    assert share_rank(13, {"tiny": 2, "other": 12}) == {"tiny": 2, "other": 11}


@pytest.mark.parametrize(("rank", "message"), [(1, "rank >= 2"), (15, "rank <= 14")])
def test_impossible_ranks_are_refused(rank: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share_rank(rank, {"tiny": 2, "other": 12})
