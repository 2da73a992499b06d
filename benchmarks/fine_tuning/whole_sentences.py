"""Whole sentences of SST-2's training part to choose on, and what is left to train on.

Its records are phrases: most of them lie within longer records. A record that is held out alone has been trained on,
nearly; dev's sentences have not. So records that lie in no longer one are held out, and with them goes every record
that shares five words in a row with one of them, or three or four words that are all it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

LEAST = 8
"""Words of a sentence that is held out."""
SHARED = 5
SHORT = (3, 4)

Words: TypeAlias = tuple[int, ...]
Word = TypeVar("Word", int, str)


def split(ids: Int64[Tensor, "n t"], most: int) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " k"]]:
    """The places of what is trained on, and of what is held out.

    Args:
        ids: token numbers, zeros behind the end, one special token on either side.
        most: how many sentences are held out.
    """
    records = [tuple(row[1 : 1 + length]) for row, length in zip(ids.tolist(), _lengths(ids), strict=True)]
    sentences = torch.tensor(_whole(records))
    held_out = sentences[torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))[:most]]
    kept = set(held_out.tolist())
    known = {run for place in kept for size in (*SHORT, SHARED) for run in runs(records[place], size)}
    train = [place for place, words in enumerate(records) if place not in kept and not _shares(words, known)]
    return torch.tensor(train), held_out


def _lengths(ids: Int64[Tensor, "n t"]) -> list[int]:
    lengths: list[int] = (ids.ne(0).sum(1) - 2).tolist()
    return lengths


def _whole(records: list[Words]) -> list[int]:
    """Records that lie in no longer record."""
    holders: dict[Words, list[int]] = defaultdict(list)
    for place, words in enumerate(records):
        for run in set(runs(words, SHARED)):
            holders[run].append(place)
    return [
        place
        for place, words in enumerate(records)
        if len(words) >= LEAST
        and not any(_within(words, records[other]) for other in _rarest(words, holders))
    ]


def _rarest(words: Words, holders: dict[Words, list[int]]) -> list[int]:
    """The fewest records that must hold all these words, if any does."""
    return min((holders[run] for run in runs(words, SHARED)), key=len)


def _within(words: Words, other: Words) -> bool:
    return len(other) > len(words) and words in runs(other, len(words))


def _shares(words: Words, known: set[Words]) -> bool:
    if len(words) in SHORT:
        return words in known
    return any(run in known for run in runs(words, SHARED))


def runs(words: tuple[Word, ...], size: int) -> Iterator[tuple[Word, ...]]:
    """So many words in a row, from every place on."""
    return (words[start : start + size] for start in range(len(words) - size + 1))
