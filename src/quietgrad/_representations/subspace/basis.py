"""An orthonormal, block-diagonal basis B of a subspace of the parameters, and the maps along it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import Blocks, split_blocks
from quietgrad._gradients.row_arithmetic import as_rows
from quietgrad._gradients.space import Shapes
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad._representations.subspace.orthonormal import WIDENED
from quietgrad._representations.subspace.projections import in_short_runs, project, projects_unformed

FORMED_BYTES = 2**28
"""Rows of one micro-batch are formed once for all that is asked of them, if they fit into this."""

Coordinates = dict[str, Tensor]
"""Group → coordinates along its basis vectors, `[k_g]` or `[n, k_g]`."""


class GroupBasis:
    """B of one group: k orthonormal rows over the group's blocks, side by side.

    Args:
        rows: `[k, p]`.
        error: what ‖BBᵀ − I‖ is at most; a tensor, not read, on a device.
        shapes: the group's blocks in the order of the columns.
    """

    def __init__(self, rows: Float[Tensor, "k p"], error: float | Tensor, shapes: Shapes) -> None:
        self.rows, self.error, self.shapes = rows, error, shapes
        self._columns = split_blocks(rows, shapes)

    def project(self, grads: BlockwiseGrads) -> Float[Tensor, "n k"]:
        """G Bᵀ, as accurate as `row_arithmetic.inner_products`."""
        total = self.rows.new_zeros(grads.samples, len(self.rows), dtype=torch.float64)
        for name in self.shapes if total.numel() else ():
            total += project(grads.blocks[name], self._columns[name])
        return total.to(torch.promote_types(self.rows.dtype, torch.float32))

    def coordinates(self, blocks: Mapping[str, Tensor]) -> Float[Tensor, " k"]:
        """B v for one vector v."""
        total = self.rows.new_zeros(len(self.rows))
        for name, columns in self._columns.items():
            total += as_rows(columns) @ blocks[name].flatten().to(columns.dtype)
        return total

    def expand(self, coordinates: Float[Tensor, "*n k"]) -> Blocks:
        """coordinates · B, as blocks."""
        return split_blocks(coordinates.to(self.rows.dtype) @ self.rows, self.shapes)

    def expand_widely(self, coordinates: Float64[Tensor, " k"]) -> Blocks:
        """coordinates · B in float64, as blocks: for what cancels afterwards."""
        parts = [columns.double().T @ coordinates for columns in self.rows.split(WIDENED, 1)]
        return split_blocks(torch.cat(parts), self.shapes)


@dataclass(frozen=True)
class Basis:
    """Block-diagonal B: one orthonormal basis a group, of no rows where the public gradients vanish."""

    groups: dict[str, GroupBasis]

    @property
    def error(self) -> float | Tensor:
        """What ‖BBᵀ − I‖ is at most."""
        errors = [group.error for group in self.groups.values()]
        # Python's max would ask a device which one is larger.
        waiting = [error for error in errors if isinstance(error, Tensor)]
        return torch.stack(waiting).amax() if waiting else max(errors, default=0.0)

    def project(self, grads: BlockwiseGrads) -> Coordinates:
        """The embedding of every sample, per group."""
        return {name: group.project(grads) for name, group in self.groups.items()}

    def coordinates(self, blocks: Mapping[str, Tensor]) -> Coordinates:
        """The embedding of one vector, per group."""
        return {name: group.coordinates(blocks) for name, group in self.groups.items()}

    def expand(self, coordinates: Mapping[str, Tensor]) -> Blocks:
        """Back to parameter space: Bᵀ·coordinates."""
        blocks: Blocks = {}
        for name, group in self.groups.items():
            blocks.update(group.expand(coordinates[name]))
        return blocks

    def expand_widely(self, coordinates: Mapping[str, Tensor]) -> Blocks:
        """The same in float64, of one vector's coordinates."""
        blocks: Blocks = {}
        for name, group in self.groups.items():
            blocks.update(group.expand_widely(coordinates[name]))
        return blocks


def projectable(grads: PerSampleGrads) -> BlockwiseGrads:
    """The same gradients, formed where each of projection, norm and sum would otherwise form them anew.

    Single outer products (t = 1) and embeddings are never formed: their projections and norms are exact without. Sums
    are taken in short runs: of a gradient much longer than its residual, the residual's bound allows less rounding.
    """
    blocks = grads.blocks
    loose = {name: block for name, block in blocks.items() if not projects_unformed(block)}
    size = sum(block.shape.numel() for block in loose.values())
    if grads.samples * size * 4 <= FORMED_BYTES:
        blocks = {**blocks, **{name: block.form() for name, block in loose.items()}}
    return BlockwiseGrads({name: in_short_runs(block) for name, block in blocks.items()}, grads.samples)
