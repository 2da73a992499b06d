"""What goes over the wire in a round, as bytes that are read without running code."""

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
    """What a drawn client is told; all of it is public.

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
        """For sending."""
        return pack(asdict(self))

    @classmethod
    def unpacked(cls, data: bytes) -> Task:
        """What `packed` made."""
        return cls(**unpack(data))


def pack(content: Any) -> bytes:
    """Tensors and plain data as bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """The content of bytes; never runs what they hold.

    Raises:
        ValueError: they hold something else.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise ValueError(f"The message cannot be read ({type(error).__name__}).") from None


def size_of(update: Update) -> int:
    """Bytes of an update's numbers."""
    return sum(block.numel() * block.element_size() for blocks in update for block in blocks.values())
