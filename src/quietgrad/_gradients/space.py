"""The space of a gradient: its named blocks, their shapes, and where each of them lives.

Three kinds of code ask a space. Mathematics reads shapes and treats it as a mapping from names to sizes. Whoever makes
new blocks asks for device and dtype. The engine asks for the tensors that gradients belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Shapes = Mapping[str, torch.Size]
"""The names and whole shapes of blocks: all that most functions need of a space, and what a plain dict can be."""


@runtime_checkable
class Shaped(Protocol):
    """A tensor, or per-sample gradients of one block."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class Part:
    """One block of a space, as this process sees it.

    Args:
        shape: of the whole block, on all processes together.
        device: of the numbers that this process holds.
        dtype: of gradients and releases, float32 at least.
        rows: the part of the first dimension that this process holds; None for the whole block.
    """

    shape: torch.Size
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)
    dtype: torch.dtype = torch.float32
    rows: slice | None = None

    @property
    def local_shape(self) -> torch.Size:
        """The shape of what this process holds."""
        if self.rows is None:
            return self.shape
        return torch.Size((len(range(*self.rows.indices(self.shape[0]))), *self.shape[1:]))


class Space(Mapping[str, torch.Size]):
    """Named blocks in a fixed order; as a mapping, each name's whole shape.

    A space of parameters also knows the parameters (`local`). Encoded spaces have none, and neither has the
    space that representations see.

    Args:
        parts: each block as this process sees it.
        parameters: the trainable parameters, for the engine alone.

    Example:
        shape = public.space["weight"]
        device = public.space.part("weight").device
    """

    def __init__(
        self, parts: Mapping[str, Part], parameters: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        self._parts, self._parameters = dict(parts), dict(parameters or {})

    @classmethod
    def of(cls, blocks: Mapping[str, Shaped]) -> Space:
        """The space of tensors, or of per-sample gradients."""
        return cls(
            {
                name: Part(block.shape, block.device, torch.promote_types(block.dtype, torch.float32))
                for name, block in blocks.items()
            }
        )

    @classmethod
    def of_parameters(
        cls, parameters: Mapping[str, nn.Parameter], *, shard: tuple[int, int] | None = None
    ) -> Space:
        """The space of a model's gradient, with its parameters.

        Args:
            shard: this process holds shard r of w of each block, as (r, w); left out, all of each.
        """
        parts = cls.of(parameters)._parts
        if shard is not None:
            parts = {
                name: replace(part, rows=rows_of_shard(part.shape[0], *shard)) for name, part in parts.items()
            }
        return cls(parts, parameters)

    @classmethod
    def of_shapes(cls, shapes: Shapes, like: Space | None = None) -> Space:
        """Blocks of these shapes where `like` has its blocks: the same name's place, or else the first block's."""
        known = {} if like is None else like._parts
        first = next(iter(known.values()), Part(torch.Size()))
        return cls(
            {name: replace(known.get(name, first), shape=shape, rows=None) for name, shape in shapes.items()}
        )

    @classmethod
    def coerce(cls, shapes: Shapes, like: Space) -> Space:
        """A space as it is; a plain mapping as `of_shapes` has it."""
        return shapes if isinstance(shapes, Space) else cls.of_shapes(shapes, like)

    def __getitem__(self, name: str) -> torch.Size:
        return self._parts[name].shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __or__(self, other: Space) -> Space:
        return Space(self._parts | other._parts)

    def __repr__(self) -> str:
        return f"Space({dict(self)})"

    @property
    def is_sharded(self) -> bool:
        """Whether this process holds some rows of each block only."""
        return any(part.rows is not None for part in self._parts.values())

    def part(self, name: str) -> Part:
        """A block as this process sees it: whole and local shape, device, dtype."""
        return self._parts[name]

    def restrict(self, names: Iterable[str]) -> Space:
        """Some of the blocks, in the order of `names`, without parameters."""
        return Space({name: self._parts[name] for name in names})

    def rename(self, prefix: str) -> Space:
        """The same blocks with a prefix before each name."""
        return Space({f"{prefix}{name}": part for name, part in self._parts.items()})

    def local(self, name: str) -> Tensor:
        """The parameter whose `grad` this process writes; of a sharded model, its shard."""
        return self._parameters[name]

    def zeros(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Blocks of zeros on their devices, in their dtypes or in another."""
        return {name: block.zero_() for name, block in self.empty(dtype).items()}

    def empty(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Blocks that are not written yet, on their devices, in their dtypes or in another."""
        return {
            name: torch.empty(part.local_shape, dtype=dtype or part.dtype, device=part.device)
            for name, part in self._parts.items()
        }


def rows_of_shard(rows: int, shard: int, shards: int) -> slice:
    """The rows that one of several processes holds: equally many each, and what is left of them at the end."""
    each = -(-rows // shards)
    return slice(min(shard * each, rows), min((shard + 1) * each, rows))


def coordinates(shapes: Shapes) -> int:
    """p, all blocks together."""
    return sum(shape.numel() for shape in shapes.values())
