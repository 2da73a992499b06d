"""A public view over gradients given as a matrix, for testing representations without a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.space import Shapes, Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad._representations.base import Codecs, Public, PublicLosses, States

SPACE = Space.of_shapes(
    {"a.weight": torch.Size((5, 4)), "a.bias": torch.Size((5,)), "b.weight": torch.Size((3, 5))}
)
SIZE = 40


def blockwise(rows: Tensor, space: Shapes = SPACE) -> BlockwiseGrads:
    """Rows `[n, p]` as formed gradients."""
    parts = rows.split([shape.numel() for shape in space.values()], dim=1)
    blocks: dict[str, Any] = {
        name: DenseGrad(part.reshape(-1, *space[name])) for name, part in zip(space, parts, strict=True)
    }
    return BlockwiseGrads(blocks, len(rows))


def flat(blocks: dict[str, Tensor], space: Shapes = SPACE) -> np.ndarray:
    """Blocks as one vector, in float64."""
    return torch.cat([blocks[name].flatten().double() for name in space]).numpy()


def public_view(
    rows: Tensor, *, space: Shapes = SPACE, chunk: int = 1000, step: int = 0, seed: int = 3
) -> Public:
    """A public view whose public gradients are these rows, in chunks."""

    def collect(_: PublicLosses, __: int) -> Iterator[PerSampleGrads]:
        return (blockwise(part, space) for part in rows.split(chunk))

    return Public(
        parameters={name: torch.zeros(shape, dtype=rows.dtype) for name, shape in space.items()},
        space=Space.coerce(space, like=SPACE),
        step=step,
        steps=10,
        rate=0.1,
        seed=seed,
        collect=collect,
        codecs=Codecs(States()),
    )


def losses(_: Any) -> Any:
    """Stands for public losses; the view gives the gradients."""
    raise AssertionError("the stub never calls it")


def numpy_top_directions(rows: np.ndarray, rank: int) -> np.ndarray:
    """The top right singular vectors, `[rank, p]`, by numpy."""
    return np.linalg.svd(rows, full_matrices=False)[2][:rank]


def same_span(a: np.ndarray, b: np.ndarray) -> float:
    """The sine of the largest angle between two subspaces given by orthonormal rows: 0 for the same one."""
    assert a.shape == b.shape
    return float(np.linalg.norm(a - a @ b.T @ b, 2))
