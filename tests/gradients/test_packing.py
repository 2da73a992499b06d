"""Greedy runs: nothing lost, order kept, room respected."""

from __future__ import annotations

import pytest

from quietgrad._gradients.blocks import pack


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([9], [[9]]),
        ([1, 2, 3, 1], [[1, 2], [3, 1]]),
        ([5, 1, 3, 4], [[5], [1, 3], [4]]),
        ([0, 4, 0, 1], [[0, 4, 0], [1]]),
    ],
)
def test_runs_fill_the_room(sizes: list[int], expected: list[list[int]]) -> None:
    assert list(pack(sizes, lambda size: size, limit=4)) == expected
