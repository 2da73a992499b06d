"""What subspaces ask of per-sample gradients: inner products with directions, and many weighted sums at once.

Each function has a default that forms the rows. The kinds of blocks that know better are registered below it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import GHOSTS, ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.row_arithmetic import PIECE, as_rows, inner_products
from quietgrad._gradients.tied import TiedGrad
from quietgrad._gradients.zero import ZeroGrad
from quietgrad._kernels.rounding import RUN
from quietgrad._representations.masks.restricted import RestrictedOuterGrad, WholeNormGrad

FORMED = 1 << 22
"""Numbers of gradients that are formed at a time: 16 MB in float32."""

# ---- inner products ------------------------------------------------------------------------------------------


@functools.singledispatch
def project(block: BlockGrads, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
    """⟨g_i, direction_j⟩ to within ACCURACY·‖g_i‖·‖direction_j‖; row i depends on sample i alone."""
    return inner_products(as_rows(block.dense()), as_rows(directions))


@project.register(ZeroGrad)
def _project_zero(block: ZeroGrad, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
    return directions.new_zeros(block.samples, len(directions), dtype=torch.float64)


@project.register(FactoredGrad)
def _project_factored(block: FactoredGrad, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
    """Formed a few samples at a time, or, where t = 1, a few rows of all their matrices: nothing cancels there."""
    if not block.is_outer:
        return _project_chunks(block, directions)
    flat, (_, i) = directions.flatten(1), block.matrix
    total = flat.new_zeros(block.samples, len(flat), dtype=torch.float64)
    few = max(1, FORMED // max(1, block.samples * i))
    for b, columns in zip(block.b[:, 0].split(few, 1), flat.split(few * i, 1), strict=True):
        total += inner_products((b[:, :, None] * block.a).flatten(1), columns)
    return total


@project.register(ConvGrad)
def _project_chunks(
    block: ConvGrad | FactoredGrad, directions: Float[Tensor, "k *shape"]
) -> Float64[Tensor, "n k"]:
    flat = directions.flatten(1)
    parts = [inner_products(part.flatten(1), flat) for _, part in block.chunks()]
    return torch.cat(parts) if parts else flat.new_zeros(0, len(flat), dtype=torch.float64)


@project.register(IndexedGrad)
def _project_table(block: IndexedGrad, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
    """Only touched rows of the table meet the directions."""
    total = block.values.new_zeros(block.samples, len(directions), dtype=torch.float64)
    for values, columns in zip(block.values.split(PIECE, 1), directions.split(PIECE, 2), strict=True):
        touched = torch.einsum("mo,kmo->mk", values, columns[:, block.ids])
        total.index_add_(0, block.owner, touched.double())
    return total


@project.register(TiedGrad)
def _project_tied(block: TiedGrad, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
    """Of formed rows: where E and M cancel, what rounding leaves of each of them would be all there is."""
    flat = directions.flatten(1)
    total = flat.new_zeros(block.samples, len(flat), dtype=torch.float64)
    at_once = max(1, FORMED // max(1, flat.shape[1]))
    for start in range(0, block.samples, at_once):
        few = range(start, min(start + at_once, block.samples))
        total[start : few.stop] = inner_products(torch.stack([block.row(i).flatten() for i in few]), flat)
    return total


# ---- many sums at once ---------------------------------------------------------------------------------------


@functools.singledispatch
def weighted_sums(block: BlockGrads, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
    """weights @ g: k weighted sums at once."""
    flat = as_rows(block.dense())
    return (weights.to(flat.dtype) @ flat).reshape(len(weights), *block.shape)


@weighted_sums.register(ZeroGrad)
def _sums_of_zero(block: ZeroGrad, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
    return block.like.new_zeros(len(weights), *block.shape)


@weighted_sums.register(FactoredGrad)
def _sums_of_factors(block: FactoredGrad, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
    """One matmul of stacked factors for t = 1, else over formed chunks."""
    if not block.is_outer:
        return _sums_of_chunks(block, weights)
    k, (o, _) = len(weights), block.matrix
    scaled = weights.to(block.dtype)[:, :, None] * block.b[:, 0]
    return (scaled.transpose(1, 2).reshape(k * o, -1) @ block.a[:, 0]).reshape(k, *block.shape)


@weighted_sums.register(ConvGrad)
def _sums_of_chunks(
    block: ConvGrad | FactoredGrad, weights: Float[Tensor, "k n"]
) -> Float[Tensor, "k *shape"]:
    total = torch.zeros(len(weights), block.shape.numel(), dtype=block.dtype, device=block.device)
    weights = weights.to(total.dtype)
    for rows, part in block.chunks():
        total += weights[:, rows] @ part.flatten(1)
    return total.reshape(-1, *block.shape)


@weighted_sums.register(IndexedGrad)
def _sums_of_table(block: IndexedGrad, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
    scaled = weights.to(block.values.dtype)[:, block.owner, None] * block.values
    return block.values.new_zeros(len(weights), *block.shape).index_add_(1, block.ids, scaled)


@weighted_sums.register(TiedGrad)
def _sums_of_tied(block: TiedGrad, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
    return weighted_sums(block.table, weights) + weighted_sums(block.matrix, weights)


@functools.singledispatch
def add_weighted_sums(block: BlockGrads, total: Float[Tensor, "k p"], weights: Float[Tensor, "k n"]) -> None:
    """total += weights @ g, each sum a row of `total`."""
    total += as_rows(weighted_sums(block, weights))


@add_weighted_sums.register(DenseGrad)
def _add_sums_of_rows(block: DenseGrad, total: Float[Tensor, "k p"], weights: Float[Tensor, "k n"]) -> None:
    total.addmm_(weights.to(total), as_rows(block.rows))  # without a copy of the total's size


# ---- how they are summed, and what keeping them costs --------------------------------------------------------


@functools.singledispatch
def in_short_runs(block: BlockGrads) -> BlockGrads:
    """The same gradients, of which at most RUN are added up in float32: for rows that cancel later."""
    return block


@in_short_runs.register(FactoredGrad)
def _factors_in_short_runs(block: FactoredGrad) -> FactoredGrad:
    if block.is_outer:
        return FactoredGrad(block.a, block.b, block.shape, run=RUN)
    return block.with_algorithm("chunked")


@in_short_runs.register(ConvGrad)
def _convolution_in_short_runs(block: ConvGrad) -> ConvGrad:
    return block.with_algorithm("chunked") if block.algorithm in GHOSTS else block


@in_short_runs.register(TiedGrad)
def _tied_in_short_runs(block: TiedGrad) -> TiedGrad:
    return TiedGrad(block.table, block.matrix, formed=True)


@in_short_runs.register(WholeNormGrad)
def _whole_norm_in_short_runs(block: WholeNormGrad) -> WholeNormGrad:
    return WholeNormGrad(in_short_runs(block.block), block.kept)


@in_short_runs.register(RestrictedOuterGrad)
def _restricted_in_short_runs(block: RestrictedOuterGrad) -> RestrictedOuterGrad:
    return RestrictedOuterGrad(in_short_runs(block.block), block.a, block.b, block.kept)


@functools.singledispatch
def projects_unformed(block: BlockGrads) -> bool:
    """Whether projections, norms and sums each do without forming the rows; if not, forming them once pays."""
    return block.is_formed


@projects_unformed.register(FactoredGrad)
def _factors_project_unformed(block: FactoredGrad) -> bool:
    o, i = block.matrix
    return block.is_outer and o + i < o * i


@projects_unformed.register(IndexedGrad)
@projects_unformed.register(ZeroGrad)
def _projects_unformed(_block: IndexedGrad | ZeroGrad) -> bool:
    return True


def kept_bytes(blocks: Iterable[BlockGrads]) -> int:
    """Memory that keeping these blocks takes."""
    return sum(map(_kept_bytes, blocks))


@functools.singledispatch
def _kept_bytes(block: BlockGrads) -> int:
    return block.samples * block.shape.numel() * 4


@_kept_bytes.register(FactoredGrad)
def _kept_factors(block: FactoredGrad) -> int:
    return (block.a.numel() + block.b.numel()) * block.a.element_size()


@_kept_bytes.register(IndexedGrad)
def _kept_values(block: IndexedGrad) -> int:
    return block.values.numel() * block.values.element_size()


@_kept_bytes.register(ZeroGrad)
def _kept_nothing(_block: ZeroGrad) -> int:
    return 0
