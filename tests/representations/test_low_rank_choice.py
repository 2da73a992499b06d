"""Which parameters get carriers, at which rank, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quietgrad._representations.low_rank.low_rank import LowRank
from quietgrad._representations.low_rank.matrices import choose_matrices


def parameters() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "conv.weight": (16, 8, 3, 3),
        "norm.weight": (16,),
        "hidden.weight": (64, 100),
        "hidden.bias": (64,),
        "small.weight": (6, 64),
        "head.weight": (10, 640),
    }
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def test_by_default_every_matrix_that_shrinks_twofold_except_the_classifier() -> None:
    assert choose_matrices(parameters(), 4, None) == {"conv.weight": 4, "hidden.weight": 4}
    assert choose_matrices(parameters(), 1, None) == {"conv.weight": 1, "hidden.weight": 1, "small.weight": 1}


def test_named_matrices_keep_the_models_order_and_are_capped_by_their_shape() -> None:
    chosen = choose_matrices(parameters(), 12, ("small.*", "h*.weight"))
    assert chosen == {"hidden.weight": 12, "small.weight": 6, "head.weight": 10}
    assert list(chosen) == ["hidden.weight", "small.weight", "head.weight"]


def test_a_name_that_is_frozen_or_misspelt_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"matrices: 'frozen\.weight' names no trainable matrix.*[Ff]rozen.*conv"
    ):
        choose_matrices(parameters(), 2, ("hidden.weight", "frozen.weight"))
    with pytest.raises(ValueError, match=r"'hidden\.bias' names no trainable matrix"):
        choose_matrices(parameters(), 2, ("hidden.bias",))


def test_no_eligible_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="No matrix is eligible for rank=40"):
        choose_matrices(parameters(), 40, None)
    with pytest.raises(ValueError, match="No matrix is eligible"):
        choose_matrices({"head.weight": torch.zeros(10, 20)}, 1, None)


def test_a_rank_above_every_named_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rank <= 10.*got 11"):
        choose_matrices(parameters(), 11, ("small.weight", "head.weight"))


@pytest.mark.parametrize("rank", [0, -3])
def test_a_rank_below_one_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank >= 1, got {rank}"):
        LowRank(rank=rank)


@pytest.mark.wrong_types
def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(ValueError, match="orthogonal, paper, left, got 'both'"):
        LowRank(rank=1, release="both")  # type: ignore[arg-type]
