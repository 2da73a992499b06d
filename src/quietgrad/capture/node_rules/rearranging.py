"""The same elements in other places: views, parts, wholes."""

from __future__ import annotations

import torch
from torch import Tensor

from quietgrad.capture.layout import at_stride, stride_of
from quietgrad.capture.node_rules.visit import Fate, State, Visit, doubtful, rule, wrapped


@rule("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze")
def viewed(visit: Visit) -> list[State]:
    """Row-major order stays, and so does the distance between neighbouring samples."""
    shape = visit.children[0]
    found = None if shape is None else at_stride(stride_of(visit.layout, visit.shape), shape, visit.n)
    return visit.all(found or Fate.DOUBT)


@rule("Transpose", "T")
def transposed(visit: Visit) -> list[State]:
    rank = len(visit.shape)
    a, b = (
        (0, rank - 1)
        if not hasattr(visit.node, "_saved_dim0")
        else (visit.saved_dim(rank, "dim0"), visit.saved_dim(rank, "dim1"))
    )
    return visit.all(visit.moved({a: b, b: a}.get(visit.dim, visit.dim)))


@rule("Permute")
def permuted(visit: Visit) -> list[State]:
    return visit.all(visit.moved(wrapped(visit.saved("dims")[visit.dim], len(visit.shape))))


@rule("ViewAsReal", "ViewAsComplex")
def complex_pairs(visit: Visit) -> list[State]:
    """The last dimension comes or goes."""
    ranks = [len(shape) for shape in visit.children if shape is not None]
    return visit.all(visit.layout if visit.dim < min(ranks, default=0) else Fate.DOUBT)


# ---- parts and wholes ---------------------------------------------------------------------------------------


@rule("Select", "Unbind")
def one_slice(visit: Visit) -> list[State]:
    """The input has one dimension more."""
    taken = visit.saved_dim(len(visit.shape) + 1)
    return visit.all(visit.moved(visit.dim + (taken <= visit.dim)))


@rule("Slice")
def sliced(visit: Visit) -> list[State]:
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all(visit.layout)
    start, step = visit.saved("start") or 0, visit.saved("step")
    return visit.all(_in_phase(visit, start, visit.children[0]) if step == 1 and start >= 0 else Fate.DOUBT)


@rule("Split", "SplitWithSizes")
def split(visit: Visit) -> list[State]:
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all(visit.layout)
    sizes = getattr(visit.node, "_saved_split_sizes", None)
    start = sum(sizes[: visit.number]) if sizes else visit.saved("split_size") * visit.number
    return visit.all(_in_phase(visit, start, visit.children[0]))


def _in_phase(visit: Visit, start: int, shape: torch.Size | None) -> State:
    """Part of a longer dimension: the samples come round every n·inner positions, if they do so there too."""
    period = visit.n * visit.layout.inner
    fits = shape is not None and shape[visit.dim] % period == 0 and start % period == 0
    return visit.layout if fits else Fate.DOUBT


@rule("Cat")
def concatenated(visit: Visit) -> list[State]:
    if visit.saved_dim(len(visit.shape)) != visit.dim:
        return visit.all(visit.layout)
    period = visit.n * visit.layout.inner
    whole = all(shape is not None and shape[visit.dim] % period == 0 for shape in visit.children)
    return visit.all(visit.layout if whole else Fate.DOUBT)


@rule("Stack")
def stacked(visit: Visit) -> list[State]:
    added = visit.saved_dim(len(visit.shape))
    return visit.all(Fate.DOUBT if added == visit.dim else visit.moved(visit.dim - (added < visit.dim)))


@rule("Repeat")
def repeated(visit: Visit) -> list[State]:
    """Copies lie one after the other, so the samples come round in the same order."""
    shape = visit.children[0]
    dim = visit.dim - (len(visit.shape) - len(shape or ()))
    if shape is None or dim < 0 or shape[dim] == 1:
        return visit.all(Fate.SHARED if shape is not None else Fate.DOUBT)
    return visit.all(visit.moved(dim) if shape[dim] % (visit.n * visit.layout.inner) == 0 else Fate.DOUBT)


@rule("Index")
def indexed(visit: Visit) -> list[State]:
    """Other dimensions are indexed, or sample i's part is asked for under number i (`x[arange(n), last]`)."""
    indices = list(visit.saved("indices"))
    if visit.layout.inner != 1 or any(i is not None and i.dtype != torch.long for i in indices):
        return doubtful(visit)
    used = [place for place, index in enumerate(indices) if index is not None]
    if used != list(range(used[0], used[-1] + 1)):
        return doubtful(visit)
    first, added = used[0], max(indices[place].dim() for place in used)
    if visit.dim < first:
        return visit.all(visit.layout)
    if visit.dim >= first + added:
        return visit.all(visit.moved(visit.dim - added + len(used)))
    counted = [p for p in used if _counts(indices[p], visit.n, added - 1 - (visit.dim - first))]
    return visit.all(visit.moved(counted[0]) if counted else Fate.DOUBT)


def _counts(index: Tensor, n: int, after: int) -> bool:
    """Whether an index is 0, 1, … n − 1 along the dimension that has `after` more behind it, and nothing else."""
    if index.numel() != n or index.dim() <= after or index.shape[index.dim() - 1 - after] != n:
        return False
    return torch.equal(index.flatten(), torch.arange(n, device=index.device))


@rule("ConstantPadNd")
def padded(visit: Visit) -> list[State]:
    first = len(visit.shape) - len(visit.saved("pad")) // 2
    return visit.all(visit.layout if visit.dim < first else Fate.DOUBT)


@rule("Unfold")
def unfolded(visit: Visit) -> list[State]:
    """`x.unfold(dimension, …)`: windows become a last dimension."""
    rank = len(visit.shape) - 1
    touched = {visit.saved_dim(rank, "dimension"), rank}
    return visit.all(Fate.DOUBT if visit.dim in touched else visit.layout)
