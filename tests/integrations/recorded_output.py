"""Every number that a run tells: in files of text, in saved dictionaries, on the screen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TEXT = (".json", ".jsonl", ".md", ".csv", ".yaml", ".txt")
SAVED = (".pt", ".bin", ".ckpt", ".pth")
WEIGHTS = (".safetensors",)


def numbers(folder: Path) -> set[float]:
    """All single numbers in all files; weights and other arrays are what is released.

    Raises:
        AssertionError: a file of a kind that is not known, which nobody has looked into.
    """
    found: set[float] = set()
    for file in (path for path in folder.rglob("*") if path.is_file()):
        if file.suffix in TEXT:
            found |= printed(file.read_text())
        elif file.suffix in SAVED:
            found |= set(_held(torch.load(file, weights_only=False)))
        else:
            assert file.suffix in WEIGHTS, file
    return found


def printed(text: str) -> set[float]:
    """Numbers as they stand in a text; digits inside of words (hashes) are none."""
    return {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])", text)}


def _held(value: Any) -> Iterator[float]:
    if isinstance(value, Tensor):
        if value.dim() == 0:
            yield float(value)
    elif isinstance(value, Mapping):
        yield from (number for pair in value.items() for each in pair for number in _held(each))
    elif isinstance(value, list | tuple | set):
        yield from (number for each in value for number in _held(each))
    elif isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from printed(value)
    elif hasattr(value, "__dict__"):
        yield from _held(json.loads(json.dumps(vars(value), default=str)))


def counts(sizes: Iterable[int]) -> set[float]:
    """What would tell how much was drawn: each size, and all so far."""
    listed = list(sizes)
    return {float(number) for number in (*listed, *accumulate(listed))}
