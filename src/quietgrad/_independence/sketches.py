"""Inner products of the gradients of one pass with random directions, taken block by block as the backward makes them.

Nothing is kept of a block for it: a pass that asks takes no more memory than a step.

Checked by: tests/independence/test_sketches.py
"""

from __future__ import annotations

import zlib

import torch
from jaxtyping import Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._independence.directions import Direction, along


class Directions:
    """The directions of a model's blocks, each drawn when it is first asked for.

    Args:
        seed: secret, or code could mix gradients where no direction shows it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: dict[tuple[str, torch.Size, torch.device], Direction] = {}

    def of(self, name: str, block: BlockGrads) -> Direction:
        """Return the direction of a block, the same in every pass."""
        key = (name, block.shape, block.device)
        if key not in self._drawn:
            generator = torch.Generator().manual_seed((self._seed + zlib.crc32(name.encode())) % 2**63)
            self._drawn[key] = Direction.draw(block.shape, block.device, generator)
        return self._drawn[key]


class Sketch:
    """Add up, over the blocks of one pass, what each gives along its direction.

    Args:
        directions: of the blocks; passes that are compared have the same.
    """

    def __init__(self, directions: Directions) -> None:
        self._directions = directions
        self._products: Tensor | None = None

    def add(self, name: str, block: BlockGrads) -> None:
        """Add one block, before any of its factors is dropped."""
        product = along(block, self._directions.of(name, block))
        self._products = product if self._products is None else self._products + product

    def products(self, samples: int) -> Float64[Tensor, " n"]:
        """Return the inner product of each record."""
        return torch.zeros(samples, dtype=torch.float64) if self._products is None else self._products.cpu()
