"""The messages of a round, as bytes that are read without running code."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any

import torch

from quietgrad._gradients.blocks import Blocks

Update = list[Blocks]
"""A client's encoded update: the blocks of each release."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The message to a drawn client; all of it is public.

    Args:
        weights: of the model, as the last round left them.
        state: what representations remember; with the seed it gives every client the codecs of this round.
        round, rounds, rate: where in the plan this round is.
        seed: of the run's public randomness.

    Example:
        task = server.task()
        size = len(task.packed())
    """

    weights: Blocks
    state: dict[str, Any]
    round: int
    rounds: int
    rate: float
    seed: int

    def packed(self) -> bytes:
        """Return bytes to send."""
        return pack(asdict(self))

    @classmethod
    def unpacked(cls, data: bytes) -> Task:
        """Read what `packed` made."""
        return cls(**unpack(data))


def pack(content: Any) -> bytes:
    """Turn tensors and plain data into bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Read the content of bytes; never runs what they contain.

    Raises:
        ValueError: they contain something else.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise ValueError(f"The message cannot be read ({type(error).__name__}).") from None


def size_of(update: Update) -> int:
    """Return the number of bytes of an update's numbers."""
    return sum(block.numel() * block.element_size() for blocks in update for block in blocks.values())
