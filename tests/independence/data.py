"""Made-up records of unequal shape, and what collates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Record = tuple[Tensor, int]
Collate = Callable[[list[Any]], Any]
WORDS, CLASSES, FEATURES = 30, 4, 6


def texts(count: int = 64) -> list[Record]:
    """Texts of 3 to 39 words; word 0 is padding."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 40, (count,), generator=generator).tolist()
    return [(torch.randint(1, WORDS, (length,), generator=generator), length % CLASSES) for length in lengths]


def rows(count: int = 64) -> list[Record]:
    """Rows of six numbers, of which one record has large ones."""
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(FEATURES, generator=generator) * (1 + 5 * (i == 3)), i % CLASSES) for i in range(count)
    ]


def images(count: int = 64) -> list[Record]:
    """Small images of three channels."""
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(3, 8, 8, generator=generator), i % CLASSES) for i in range(count)]


def flat_images(count: int = 64) -> list[Record]:
    """Images of four equal parts: a maximum has ties, which rounding may break either way."""
    generator = torch.Generator().manual_seed(4)
    parts = [torch.randn(3, 2, 2, generator=generator) for _ in range(count)]
    return [
        (part.repeat_interleave(4, 1).repeat_interleave(4, 2), i % CLASSES) for i, part in enumerate(parts)
    ]


def labels(records: list[Record]) -> Tensor:
    return torch.tensor([label for _, label in records])


def stack(records: list[Record]) -> list[Tensor]:
    """Records of equal shape, side by side."""
    return [torch.stack([x for x, _ in records]), labels(records)]


def pad(records: list[Record]) -> list[Tensor]:
    """Texts padded to the longest of them."""
    return [nn.utils.rnn.pad_sequence([x for x, _ in records], batch_first=True), labels(records)]


def pad_left(records: list[Record]) -> list[Tensor]:
    """The same, with the padding first."""
    longest = max(len(x) for x, _ in records)
    return [torch.stack([nn.functional.pad(x, (longest - len(x), 0)) for x, _ in records]), labels(records)]


def pad_to_40(records: list[Record]) -> list[Tensor]:
    """Texts padded to a constant."""
    return [torch.stack([nn.functional.pad(x, (0, 40 - len(x))) for x, _ in records]), labels(records)]


def shortest(records: list[Record]) -> list[Tensor]:
    """Texts cut to the shortest of them."""
    least = min(len(x) for x, _ in records)
    return [torch.stack([x[:least] for x, _ in records]), labels(records)]


def standardised(records: list[Record]) -> list[Tensor]:
    """Rows standardised over the batch."""
    x, y = stack(records)
    return [(x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3), y]


def mixed_up(records: list[Record]) -> list[Tensor]:
    """Rows averaged with their neighbours."""
    x, y = stack(records)
    return [0.7 * x + 0.3 * x.roll(1, 0), y]


def numbered_words(records: list[Record]) -> list[Tensor]:
    """Words numbered in the order in which they appear in the batch."""
    seen: dict[int, int] = {}
    numbered = [
        (torch.tensor([seen.setdefault(word, 1 + len(seen)) for word in x.tolist()]), label)
        for x, label in records
    ]
    return pad_to_40(numbered)


def with_longest(records: list[Record]) -> list[Tensor]:
    """Padded to a constant, with the length of the longest text beside it."""
    x, y = pad_to_40(records)
    return [x, y, torch.full((len(x),), float(max(len(text) for text, _ in records)))]


def as_dictionary(records: list[Record]) -> dict[str, Tensor]:
    x, y = pad_to_40(records)
    return {"input_ids": x, "attention_mask": (x > 0).long(), "labels": y}


def as_records(records: list[Record]) -> list[Record]:
    """Not collated: the loop does it."""
    return records
