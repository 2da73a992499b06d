"""Parts that share no record and no content."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, digests


def without_content(examples: Examples, taken: AbstractSet[bytes]) -> Examples:
    """The examples whose content is not among the hashes `taken`."""
    keep = [row for row, digest in enumerate(digests(examples.inputs)) if digest not in taken]
    return examples.take(np.array(keep, dtype=np.int64))


def draw(
    examples: Examples, size: int | None, rng: np.random.Generator, part: str
) -> tuple[Examples, Examples]:
    """A uniformly drawn subset of `size` examples (None: all, in random order), and the rest."""
    available = len(examples)
    wanted = available if size is None else size
    if not 0 <= wanted <= available:
        raise DataError(
            f"{part}={wanted} asked for, but {available} examples are left. Ask for 0 to {available}."
        )
    order = rng.permutation(available)
    return examples.take(order[:wanted]), examples.take(order[wanted:])


def balanced_rows(
    labels: Int64[ndarray, "n"], per_class: int, rng: np.random.Generator
) -> Int64[ndarray, "m"]:
    """Row numbers of `per_class` random examples of each class, in random order."""
    classes = np.unique(labels)
    chosen = [rng.choice(np.flatnonzero(labels == c), size=per_class, replace=False) for c in classes]
    return rng.permutation(np.concatenate(chosen))


def refuse_overlap(public: ndarray, private: ndarray) -> None:
    """An error if any public input has the content of a private one."""
    shared = set(digests(public)) & set(digests(private))
    if shared:
        raise DataError(
            f"public data overlap the private data: {len(shared)} inputs are in both. "
            "Remove them from the public part: what is public protects nobody."
        )
