"""Bases of the anchor subspace: orthonormal rows per parameter group, from public gradients or at random.

power iteration   B ← orth((G Bᵀ)ᵀ G), t times from a random start (GEP)
eigenvectors      the top eigenvectors of GᵀG, from the m×m Gram matrix GGᵀ (PDP-SGD)
random            orthonormal directions of a Gaussian matrix, the baseline that knows nothing
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.space import Shapes, coordinates
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._kernels.transfer import upload
from quietgrad._representations.subspace.basis import Basis, Coordinates, GroupBasis
from quietgrad._representations.subspace.orthonormal import NotFiniteError, orthonormal_groups
from quietgrad._representations.subspace.partition import Partition
from quietgrad._representations.subspace.projections import add_weighted_sums, project
from quietgrad._representations.subspace.public_matrix import PublicMatrix

_FORMED = 2**23
"""Numbers of a block that may be formed for one pass over them."""


def power_iteration(
    matrix: PublicMatrix,
    space: Shapes,
    groups: Partition,
    ranks: Mapping[str, int],
    *,
    iterations: int,
    like: Tensor,
    generator: torch.Generator,
) -> Basis:
    """B ← orth((G Bᵀ)ᵀ G) per group from a random start, `iterations` times."""
    _check_ranks(ranks, matrix.samples)
    shapes = _group_shapes(space, groups)
    images = _random_images(matrix, shapes, ranks, generator, like)
    bases: dict[str, GroupBasis] = {}
    for iteration in range(iterations):
        if iteration:
            images = _images(matrix, bases)
        weights = {name: _orthonormal_columns(image) for name, image in images.items()}
        rows = _combinations(matrix, shapes, weights, like)
        if iteration == iterations - 1:
            matrix.forget()  # orthonormalising is the other peak of memory
        bases = _orthonormal_bases(rows, shapes)
    return _with_warning(bases, ranks)


def gram_eigenvectors(
    matrix: PublicMatrix, space: Shapes, groups: Partition, ranks: Mapping[str, int], *, like: Tensor
) -> Basis:
    """The top eigenvectors of each group's second-moment matrix GᵀG = VΛVᵀ, from GGᵀ = UΛUᵀ: V = GᵀUΛ^{−1/2}."""
    _check_ranks(ranks, matrix.samples)
    shapes = _group_shapes(space, groups)
    weights = _top_eigenvectors(gram_matrices(matrix, groups), ranks)
    rows = _combinations(matrix, shapes, weights, like)
    matrix.forget()
    return _with_warning(_orthonormal_bases(rows, shapes), ranks)


def random_basis(
    space: Shapes,
    groups: Partition,
    ranks: Mapping[str, int],
    *,
    like: Tensor,
    generator: torch.Generator,
) -> Basis:
    """Uniformly random subspaces: the orthonormalised rows of Gaussian matrices."""
    rows, shapes = {}, _group_shapes(space, groups)
    for name, members in shapes.items():
        drawn = torch.randn(ranks[name], coordinates(members), generator=generator)
        rows[name] = upload(drawn.to(like.dtype), like.device)
    return Basis(_orthonormal_bases(rows, shapes))


def gram_matrices(matrix: PublicMatrix, groups: Partition) -> dict[str, Float64[Tensor, "m m"]]:
    """GGᵀ per group. A pass for each chunk when the gradients are streamed, so that two are in memory at most."""
    size = matrix.samples
    grams = {name: torch.zeros(size, size, dtype=torch.float64, device=matrix.device) for name in groups}
    start = 0
    while start < matrix.samples:
        left: tuple[slice, BlockwiseGrads] | None = None
        for rows, chunk in matrix.chunks():
            if rows.start == start:
                left = rows, chunk
            if left is not None:
                _add_products(grams, groups, left, (rows, chunk))
        assert left is not None
        start = left[0].stop
    return grams


def _add_products(
    grams: dict[str, Tensor],
    groups: Partition,
    left: tuple[slice, BlockwiseGrads],
    right: tuple[slice, BlockwiseGrads],
) -> None:
    for name, members in groups.items():
        product = grams[name].new_zeros(left[1].samples, right[1].samples)
        for member in members:
            product += project(left[1].blocks[member], right[1].blocks[member].dense())
        grams[name][left[0], right[0]] = product
        grams[name][right[0], left[0]] = product.T


def _top_eigenvectors(
    grams: Mapping[str, Float64[Tensor, "m m"]], ranks: Mapping[str, int]
) -> dict[str, Float64[Tensor, "k m"]]:
    """Each group's, by LAPACK on the CPU: it is as fast as on any device. One download for all groups."""
    downloaded = torch.stack(list(grams.values())).cpu()
    if not bool(downloaded.isfinite().all()):
        raise NotFiniteError
    return {
        name: upload(torch.linalg.eigh(small).eigenvectors.flip(1)[:, : ranks[name]].T, gram.device)
        for (name, gram), small in zip(grams.items(), downloaded, strict=True)
    }


def _random_images(
    matrix: PublicMatrix,
    shapes: dict[str, Shapes],
    ranks: Mapping[str, int],
    generator: torch.Generator,
    like: Tensor,
) -> Coordinates:
    """G Ω for a random start Ω. One seed a block, so that every chunk meets the same Ω."""
    images = {name: like.new_zeros(matrix.samples, ranks[name], dtype=torch.float64) for name in shapes}
    seeds = {block: _seed(generator) for members in shapes.values() for block in members}
    for rows, chunk in matrix.chunks():
        for name, members in shapes.items():
            for block in members:
                image = random_image(chunk.blocks[block], ranks[name], seeds[block], like)
                images[name][rows] += image.double()
    return images


def random_image(block: BlockGrads, rank: int, seed: int, like: Tensor) -> Float[Tensor, "n k"]:
    """G Ω with random signs in Ω, E ΩΩᵀ = I as for a Gaussian start.

    Rows that are formed, or small, meet a sparse Ω (each parameter goes into one column): G Ω then costs one pass
    over G instead of k.
    """
    generator = torch.Generator().manual_seed(seed)
    if not block.is_formed and block.samples * block.shape.numel() > _FORMED:
        return project(block, _signs((rank, *block.shape), generator, like) / rank**0.5)
    flat = block.dense().flatten(1)
    size = flat.shape[1]
    signed = flat.new_empty(
        len(flat), size + -size % rank
    )  # whole rows of columns; the last is filled up with 0
    torch.mul(flat, _signs((size,), generator, like), out=signed[:, :size])
    signed[:, size:] = 0.0
    columns: Tensor = signed.unflatten(1, (-1, rank))
    return columns.sum(1)


def _signs(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    drawn = torch.randint(2, shape, generator=generator, dtype=torch.int8)
    signs: Tensor = upload(drawn, like.device).to(like.dtype)
    return signs.mul_(2).sub_(1)


def _images(matrix: PublicMatrix, bases: Mapping[str, GroupBasis]) -> Coordinates:
    parts: dict[str, list[Tensor]] = {name: [] for name in bases}
    for _, chunk in matrix.chunks():
        for name, basis in bases.items():
            parts[name].append(basis.project(chunk).double())
    return {name: torch.cat(rows) for name, rows in parts.items()}


def _combinations(
    matrix: PublicMatrix,
    shapes: dict[str, Shapes],
    weights: Mapping[str, Float64[Tensor, "r m"]],
    like: Tensor,
) -> dict[str, Float[Tensor, "r p"]]:
    """weights · G per group, over all chunks."""
    totals = {
        name: like.new_zeros(len(weights[name]), coordinates(members)) for name, members in shapes.items()
    }
    for chunks in matrix.chunk_groups():
        for name, members in shapes.items():
            for block, columns in _columns(totals[name], members):
                for rows, chunk in chunks:
                    add_weighted_sums(chunk.blocks[block], columns, weights[name][:, rows])
    return totals


def _columns(rows: Float[Tensor, "r p"], space: Shapes) -> Iterator[tuple[str, Float[Tensor, "r q"]]]:
    """Each block's columns, to be written to: whatever memory is, `split` gives views."""
    sizes = [shape.numel() for shape in space.values()]
    return zip(space, rows.split(sizes, dim=1), strict=True)


def _orthonormal_bases(
    rows: dict[str, Float[Tensor, "k p"]], shapes: dict[str, Shapes]
) -> dict[str, GroupBasis]:
    return {name: GroupBasis(*bounded, shapes[name]) for name, bounded in orthonormal_groups(rows).items()}


def _orthonormal_columns(image: Float64[Tensor, "m k"]) -> Float64[Tensor, "k m"]:
    """An orthonormal basis of the image's columns: its combinations of G are far better conditioned than its own."""
    columns: Tensor = torch.linalg.qr(image).Q
    return columns.T


def _group_shapes(space: Shapes, groups: Partition) -> dict[str, Shapes]:
    return {name: {block: space[block] for block in members} for name, members in groups.items()}


def _with_warning(bases: dict[str, GroupBasis], ranks: Mapping[str, int]) -> Basis:
    for name, basis in bases.items():
        if len(basis.rows) < ranks[name]:
            warnings.warn(
                f"The public gradients of group {name!r} have rank {len(basis.rows)} only, so its basis has that rank "
                f"instead of {ranks[name]}. More or other public samples would fill it.",
                RuntimeWarning,
                stacklevel=2,
            )
    return Basis(bases)


def _check_ranks(ranks: Mapping[str, int], samples: int) -> None:
    for name, rank in ranks.items():
        if rank > samples:
            raise ValueError(
                f"Expected rank <= {samples}, the number of public gradients, got {rank} for group {name!r}. "
                "Lower rank, or return more public losses."
            )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))
