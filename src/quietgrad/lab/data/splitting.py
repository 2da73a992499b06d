"""Parts that share no record and no content."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, digests


@dataclass
class Pool:
    """Records not yet given to a part."""

    examples: Examples

    def exclude(self, inputs: ndarray) -> None:
        """Drop the records with the content of these inputs.

        How many they were stays private: beside the number of remaining records it would say of a known input whether
        it was among the private ones.
        """
        taken = set(digests(inputs))
        keep = [row for row, digest in enumerate(digests(self.examples.inputs)) if digest not in taken]
        self.examples = self.examples.take(np.array(keep, dtype=np.int64))

    def draw(self, rows: Int64[ndarray, "m"]) -> Examples:
        """Move these rows out of the pool; records with the same content can go to no other part."""
        drawn = self.examples.take(rows)
        self.examples = self.examples.take(np.setdiff1d(np.arange(len(self.examples)), rows))
        self.exclude(drawn.inputs)
        return drawn


def random_rows(available: int, size: int, *, part: str, seed: int) -> Int64[ndarray, "m"]:
    """`size` of `available` row numbers, uniformly at random; each part has a random stream of its own."""
    if not 1 <= size <= available:
        raise DataError(f"{part}={size}, but there are {available} examples to choose from. Ask for fewer.")
    stream = int.from_bytes(part.encode(), "big")
    return np.random.default_rng([seed, stream]).permutation(available)[:size]


def balanced_rows(
    labels: Int64[ndarray, "n"], per_class: int, rng: np.random.Generator
) -> Int64[ndarray, "m"]:
    """Row numbers of `per_class` random examples of each class, in random order."""
    classes = np.unique(labels)
    chosen = [rng.choice(np.flatnonzero(labels == c), size=per_class, replace=False) for c in classes]
    return rng.permutation(np.concatenate(chosen))


def refuse_overlap(public: ndarray, other: ndarray, part: str) -> None:
    """An error if any public input has the content of an input of the other part."""
    shared = set(digests(public)) & set(digests(other))
    if shared:
        raise DataError(
            f"public data overlap the {part} data: some inputs are in both. "
            "Remove them from the public data or take other public data."
        )
