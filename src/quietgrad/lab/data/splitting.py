"""Parts that share no row. What is in a private row never decides which part it goes to, nor whether it is kept.

The number of private records is public. Dropping records with the content of a test record would change it: of a known
record it would show whether it is private. A table of few distinct rows would lose almost everything.
"""

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

    def draw(self, rows: Int64[ndarray, "m"]) -> Examples:
        """Move these rows out of the pool."""
        drawn = self.examples.take(rows)
        self.examples = self.examples.take(np.setdiff1d(np.arange(len(self.examples)), rows))
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


def check_given_public(public: ndarray, test: ndarray) -> None:
    """Refuse public inputs that came with the data but are in the test part, which is public too.

    They are not compared with private inputs. An input that is both public and private is public, so it may be used.
    To refuse or drop it would reveal that it is private too, however many of them there are.

    Raises:
        DataError: a public input is in the test part.
    """
    if set(digests(public)) & set(digests(test)):
        raise DataError(
            "public data overlap the test data: some inputs are in both. Remove them from the public data or take "
            "other public data."
        )
