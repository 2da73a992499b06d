"""Rules of operations that put the same elements in other places: views, slices, concatenation, indexing, padding."""

from __future__ import annotations

import torch
from torch import Tensor

from quietgrad._capture.layout import BatchAxis, BatchLayout, at_stride, stride_of
from quietgrad._capture.node_rules.visit import Visit, unknown, wrap_dim


def viewed(visit: Visit) -> list[BatchLayout]:
    """Keeps the row-major order, and with it the stride from one sample to the next."""
    shape = visit.first_input_shape
    # Views that merge or split dimensions ([n, t, d] → [n·t, d]) have no dimension that stays. What stays is the
    # number of elements between neighbouring samples, from which the new layout is computed.
    found = None if shape is None else at_stride(stride_of(visit.layout, visit.shape), shape, visit.n)
    return visit.all_inputs(found or BatchAxis.UNKNOWN)


def transposed(visit: Visit) -> list[BatchLayout]:
    """Swaps two dimensions; `T` the first and the last."""
    rank = len(visit.shape)
    a, b = (
        (0, rank - 1)
        if not hasattr(visit.node, "_saved_dim0")
        else (visit.saved_dim(rank, "dim0"), visit.saved_dim(rank, "dim1"))
    )
    return visit.all_inputs(visit.moved_to({a: b, b: a}.get(visit.dim, visit.dim)))


def permuted(visit: Visit) -> list[BatchLayout]:
    """Reorders the dimensions."""
    return visit.all_inputs(visit.moved_to(wrap_dim(visit.saved("dims")[visit.dim], len(visit.shape))))


def complex_pairs(visit: Visit) -> list[BatchLayout]:
    """Adds or removes the last dimension."""
    ranks = [len(shape) for shape in visit.input_shapes if shape is not None]
    return visit.all_inputs(visit.layout if visit.dim < min(ranks, default=0) else BatchAxis.UNKNOWN)


# ---- parts and wholes ---------------------------------------------------------------------------------------


def one_slice(visit: Visit) -> list[BatchLayout]:
    """Takes one slice: the input has one dimension more."""
    taken = visit.saved_dim(len(visit.shape) + 1)
    return visit.all_inputs(visit.moved_to(visit.dim + (taken <= visit.dim)))


def sliced(visit: Visit) -> list[BatchLayout]:
    """Takes part of a dimension."""
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all_inputs(visit.layout)
    start, step = visit.saved("start") or 0, visit.saved("step")
    return visit.all_inputs(
        _in_phase(visit, start, visit.first_input_shape) if step == 1 and start >= 0 else BatchAxis.UNKNOWN
    )


def split(visit: Visit) -> list[BatchLayout]:
    """Takes one part of several of a dimension."""
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all_inputs(visit.layout)
    sizes = getattr(visit.node, "_saved_split_sizes", None)
    start = sum(sizes[: visit.number]) if sizes else visit.saved("split_size") * visit.number
    return visit.all_inputs(_in_phase(visit, start, visit.first_input_shape))


def _in_phase(visit: Visit, start: int, shape: torch.Size | None) -> BatchLayout:
    """Samples repeat with a period of n·inner positions: the layout stays if a part starts and ends with a period."""
    period = visit.n * visit.layout.inner
    fits = shape is not None and shape[visit.dim] % period == 0 and start % period == 0
    return visit.layout if fits else BatchAxis.UNKNOWN


def concatenated(visit: Visit) -> list[BatchLayout]:
    """Puts inputs one after the other along a dimension."""
    if any(shape is not None and len(shape) != len(visit.shape) for shape in visit.input_shapes):
        return unknown(visit)  # empty vectors, which fit to everything
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all_inputs(visit.layout)
    period = visit.n * visit.layout.inner
    whole = all(shape is not None and shape[visit.dim] % period == 0 for shape in visit.input_shapes)
    return visit.all_inputs(visit.layout if whole else BatchAxis.UNKNOWN)


def stacked(visit: Visit) -> list[BatchLayout]:
    """Adds a dimension that counts the inputs."""
    # The new dimension is in the result only. Dimensions behind it have a number that is smaller by one in the
    # inputs.
    added = visit.saved_dim(len(visit.shape))
    return visit.all_inputs(
        BatchAxis.UNKNOWN if added == visit.dim else visit.moved_to(visit.dim - (added < visit.dim))
    )


def repeated(visit: Visit) -> list[BatchLayout]:
    """Puts copies one after the other, so that the samples repeat in the same order."""
    shape = visit.first_input_shape
    dim = visit.dim - (len(visit.shape) - len(shape or ()))
    if shape is None or dim < 0 or shape[dim] == 1:
        return visit.all_inputs(BatchAxis.ABSENT if shape is not None else BatchAxis.UNKNOWN)
    return visit.all_inputs(
        visit.moved_to(dim) if shape[dim] % (visit.n * visit.layout.inner) == 0 else BatchAxis.UNKNOWN
    )


def indexed(visit: Visit) -> list[BatchLayout]:
    """Indexes other dimensions, or asks for sample i under number i, as `x[arange(n), last]` does."""
    indices = list(visit.saved("indices"))
    if visit.layout.inner != 1 or any(i is not None and i.dtype != torch.long for i in indices):
        return unknown(visit)
    # Advanced indexing replaces the indexed dimensions by those of the (broadcast) index, at the place of the first
    # of them. That holds only if they are adjacent; otherwise torch moves the result to the front.
    used = [place for place, index in enumerate(indices) if index is not None]
    if used != list(range(used[0], used[-1] + 1)):
        return unknown(visit)
    first, added = used[0], max(indices[place].dim() for place in used)
    if visit.dim < first:
        return visit.all_inputs(visit.layout)
    if visit.dim >= first + added:
        return visit.all_inputs(visit.moved_to(visit.dim - added + len(used)))
    # The samples lie in a dimension that came from the index. Result i then belongs to sample i, and so must what it
    # reads: one of the indices has to count 0, 1, … n − 1 along exactly this dimension.
    counted = [p for p in used if _counts(indices[p], visit.n, added - 1 - (visit.dim - first))]
    shape = visit.first_input_shape
    # Of more than n rows the first n are asked for: those behind them get no gradient, and must not break the layout.
    fits = bool(counted) and shape is not None and shape[counted[0]] % visit.n == 0
    return visit.all_inputs(visit.moved_to(counted[0]) if fits else BatchAxis.UNKNOWN)


def _counts(index: Tensor, n: int, after: int) -> bool:
    """Ask whether an index is 0, 1, … n − 1 along the dimension that has `after` more behind it, and nothing else."""
    if index.numel() != n or index.dim() <= after or index.shape[index.dim() - 1 - after] != n:
        return False
    return torch.equal(index.flatten(), torch.arange(n, device=index.device))


def padded(visit: Visit) -> list[BatchLayout]:
    """Pads the last dimensions."""
    first = len(visit.shape) - len(visit.saved("pad")) // 2
    return visit.all_inputs(visit.layout if visit.dim < first else BatchAxis.UNKNOWN)


def unfolded(visit: Visit) -> list[BatchLayout]:
    """Adds the windows of `x.unfold(dimension, …)` as a last dimension."""
    rank = len(visit.shape) - 1
    touched = {visit.saved_dim(rank, "dimension"), rank}
    return visit.all_inputs(BatchAxis.UNKNOWN if visit.dim in touched else visit.layout)
