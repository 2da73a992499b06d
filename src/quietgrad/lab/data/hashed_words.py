"""A tokenizer whose vocabulary is public: it has none, words are hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

VOCABULARY = 8_192
TOKENS = 64
PADDING = 0


def word_id(word: str) -> int:
    """A word's number in 1 ... VOCABULARY - 1; 0 is padding."""
    digest = hashlib.blake2b(word.lower().encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % (VOCABULARY - 1)


def encode(sentences: Sequence[str]) -> Int64[ndarray, "n t"]:
    """The first TOKENS words of each sentence, split at white space, padded at the end."""
    known: dict[str, int] = {}
    ids = np.full((len(sentences), TOKENS), PADDING, dtype=np.int64)
    for row, sentence in enumerate(sentences):
        for column, word in enumerate(sentence.split()[:TOKENS]):
            if word not in known:
                known[word] = word_id(word)
            ids[row, column] = known[word]
    return ids


def describe() -> str:
    """One line for the report."""
    return f"first {TOKENS} words of a text, lower case, hashed into {VOCABULARY - 1} numbers"
