"""Which parameters are taken as matrices, and at which rank: what the low-rank methods share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor


def matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """(o, i): a weight as it is, a kernel `[out, in, kh, kw]` as `[out, in·kh·kw]`."""
    return shape[0], math.prod(shape[1:])


def as_matrix(weight: Float[Tensor, "o *inputs"]) -> Float[Tensor, "o i"]:
    return weight.flatten(1)


def check_rank(rank: int) -> None:
    if rank < 1:
        raise ValueError(f"Expected rank >= 1, got {rank}. The papers use 1 to 16.")


def choose_matrices(
    parameters: Mapping[str, Tensor], rank: int, patterns: Sequence[str] | None
) -> dict[str, int]:
    """Names of the chosen matrices with the rank each can have, min(rank, o, i).

    Args:
        parameters: the trainable parameters.
        rank: r, asked for every matrix.
        patterns: names of matrices, `*` matching anything; left out, every matrix that gets at least twice smaller
            except the last one, which is taken to be the classifier.
    """
    matrices = {name: matrix_shape(p.shape) for name, p in parameters.items() if p.dim() >= 2}
    if patterns is None:
        chosen = [name for name in list(matrices)[:-1] if _shrinks(matrices[name], rank)]
    else:
        matched = {name for pattern in patterns for name in _matching(pattern, matrices)}
        chosen = [name for name in matrices if name in matched]
    if not chosen:
        raise ValueError(
            f"No matrix is eligible for rank={rank}: each one but the classifier would shrink less than twofold. Lower "
            "rank, or name matrices=(…)."
        )
    largest = max(min(matrices[name]) for name in chosen)
    if rank > largest:
        raise ValueError(
            f"Expected rank <= {largest}, the largest rank that a chosen matrix can have, got {rank}."
        )
    return {name: min(rank, *matrices[name]) for name in chosen}


def _shrinks(shape: tuple[int, int], rank: int) -> bool:
    """Whether carriers of this rank have at most half the matrix's coordinates."""
    o, i = shape
    return 2 * rank * (o + i) <= o * i


def _matching(pattern: str, matrices: Mapping[str, tuple[int, int]]) -> list[str]:
    names = [name for name in matrices if fnmatchcase(name, pattern)]
    if not names:
        known = ", ".join(list(matrices)[:6]) or "none"
        raise ValueError(
            f"matrices: {pattern!r} names no trainable matrix. A frozen parameter has no gradient to carry: "
            f"unfreeze it or leave it out. Trainable matrices here: {known}{', …' if len(matrices) > 6 else ''}."
        )
    return names
