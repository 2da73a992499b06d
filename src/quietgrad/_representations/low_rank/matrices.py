"""Which parameters are taken as matrices, and at which rank: what the low-rank methods share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor


def matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """(o, i): a weight as it is, a kernel `[out, in, kh, kw]` as `[out, in·kh·kw]`."""
    return shape[0], math.prod(shape[1:])


def as_matrix(weight: Float[Tensor, "o *inputs"]) -> Float[Tensor, "o i"]:
    return weight.flatten(1)


Ranks: TypeAlias = int | Mapping[str, int]
"""One rank for all, or names of matrices (`*` matching anything) with a rank each; the first match counts."""


def check_rank(rank: Ranks) -> None:
    for value in [rank] if isinstance(rank, int) else list(rank.values()) or [0]:
        if value < 1:
            raise ValueError(f"Expected rank >= 1, got {value}. The papers use 1 to 16.")


def choose_matrices(
    parameters: Mapping[str, Tensor], rank: Ranks, patterns: Sequence[str] | None
) -> dict[str, int]:
    """Names of the chosen matrices with the rank each can have, min(rank, o, i).

    Args:
        parameters: the trainable parameters.
        rank: r, asked for every matrix; or a rank for each pattern, which then says which matrices are chosen.
        patterns: names of matrices, `*` matching anything; left out, every matrix that gets at least twice smaller
            except the last one, which is taken to be the classifier.
    """
    matrices = {name: matrix_shape(p.shape) for name, p in parameters.items() if p.dim() >= 2}
    if not isinstance(rank, int):
        return _each_its_rank(matrices, rank, patterns)
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


def _each_its_rank(
    matrices: Mapping[str, tuple[int, int]], ranks: Mapping[str, int], patterns: Sequence[str] | None
) -> dict[str, int]:
    if patterns is not None:
        raise ValueError("A rank for each pattern names the matrices already. Leave out matrices=.")
    found: dict[str, int] = {}
    for pattern, rank in ranks.items():
        for name in _matching(pattern, matrices):
            found.setdefault(name, min(rank, *matrices[name]))
    return {name: found[name] for name in matrices if name in found}


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
