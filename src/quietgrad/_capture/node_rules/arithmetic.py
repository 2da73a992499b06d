"""Rules of operations that compute: elementwise, along dimensions, over space, products, tables and losses."""

from __future__ import annotations

import re
from functools import cache

from quietgrad._capture.layout import BatchAxis, BatchLayout
from quietgrad._capture.node_rules.node_names import name_of
from quietgrad._capture.node_rules.visit import Rule, Visit, unknown


# A rule answers one question: given that the gradient at the node's output has its samples along `visit.dim`, along
# which dimension do they lie in the gradients that the node sends to its inputs? It may read the shapes and what
# autograd saved, never the values. If it cannot tell for certain it answers UNKNOWN, which costs a probing backward.
# A wrong answer would hand one sample's gradient to another, so every rule refuses what it has not checked.
def elementwise(visit: Visit) -> list[BatchLayout]:
    """Inputs are broadcast to the output; along a dimension of size one all samples share an input."""
    if len(visit.next_functions) == 1:  # most often
        return [visit.broadcast(visit.first_input_shape)]
    return [visit.broadcast(shape) for shape in visit.input_shapes]


def elementwise_loss(visit: Visit) -> list[BatchLayout]:
    """As any elementwise operation, if the loss was not reduced."""
    return unknown(visit) if visit.saved("reduction") != 0 else elementwise(visit)


def along_other_dims(visit: Visit) -> list[BatchLayout]:
    """Works along some dimensions: right unless one of them holds the samples."""
    rank = len(visit.shape)
    name = "dim" if hasattr(visit.node, "_saved_dim") else "dims"
    given = visit.saved(name)
    touched = (
        visit.saved_dims(rank, name) if isinstance(given, list | tuple) else {visit.saved_dim(rank, name)}
    )
    return visit.all_inputs(BatchAxis.UNKNOWN if visit.dim in touched else visit.layout)


def filled(visit: Visit) -> list[BatchLayout]:
    """Writes one number, which all samples share, to some places of a dimension."""
    return [along_other_dims(visit)[0], *[BatchAxis.ABSENT] * (len(visit.next_functions) - 1)]


def gathered(visit: Visit) -> list[BatchLayout]:
    """As along other dimensions, if every input has all samples."""
    same = all(
        s is None or s[visit.dim] == visit.shape[visit.dim] for s in visit.input_shapes if s is None or len(s)
    )
    apart = visit.saved_dim(len(visit.shape)) != visit.dim
    return visit.all_inputs(visit.layout if same and apart else BatchAxis.UNKNOWN)


def reduced(visit: Visit) -> list[BatchLayout]:
    """The output has the dimensions of the input that were not reduced."""
    shape = visit.first_input_shape
    if shape is None or not hasattr(visit.node, "_saved_dim"):
        return unknown(visit)
    given = visit.saved("dim")
    rank = len(shape)
    gone = (
        visit.saved_dims(rank)
        if isinstance(given, list | tuple) or given is None
        else {visit.saved_dim(rank)}
    )
    if len(visit.shape) == rank:
        return visit.all_inputs(BatchAxis.UNKNOWN if visit.dim in gone else visit.layout)
    # Dimension d of the result is the d-th one of the input that was not summed away.
    kept = [dim for dim in range(rank) if dim not in gone]
    return visit.all_inputs(visit.moved_to(kept[visit.dim]))


# ---- space --------------------------------------------------------------------------------------------------


def spatial(channels: int) -> Rule:
    """Works on the last dimensions, as many as its name says (`AvgPool2D`), and on `channels` more before them."""

    def apply(visit: Visit) -> list[BatchLayout]:
        lead = len(visit.shape) - _spatial_dims(name_of(visit.node)) - channels
        states = visit.all_inputs(visit.layout if visit.dim < lead else BatchAxis.UNKNOWN)
        same = all(
            s is None or (len(s) > visit.dim and s[visit.dim] == visit.shape[visit.dim])
            for s in visit.input_shapes
        )
        return states if same else unknown(visit)

    return apply


def patches(visit: Visit) -> list[BatchLayout]:
    """Turns windows `[n, c, h, w]` into columns `[n, c·k, l]` and back; without n, no dimension is left alone."""
    shape = visit.first_input_shape
    batched = shape is not None and {len(shape), len(visit.shape)} == {3, 4}
    return visit.all_inputs(visit.layout if batched and visit.dim == 0 else BatchAxis.UNKNOWN)


def channels(visit: Visit) -> list[BatchLayout]:
    """Moves what lies along dimension 1, however many dimensions follow."""
    return visit.all_inputs(BatchAxis.UNKNOWN if visit.dim == 1 else visit.layout)


@cache
def _spatial_dims(name: str) -> int:
    found = re.search(r"([123])d", name, re.IGNORECASE)
    return int(found[1]) if found else 2


# ---- products -----------------------------------------------------------------------------------------------


def product(visit: Visit) -> list[BatchLayout]:
    """`[i, k] × [k, j]`."""
    return _product(visit, batch=0)


def batched_product(visit: Visit) -> list[BatchLayout]:
    """`[m, i, k] × [m, k, j]`."""
    return _product(visit, batch=1)


def added_product(visit: Visit) -> list[BatchLayout]:
    """A product, and what is broadcast to it."""
    return [visit.broadcast(visit.first_input_shape), *_product(visit, batch=0)]


def added_batched_product(visit: Visit) -> list[BatchLayout]:
    """A batched product, and what is broadcast to it."""
    return [visit.broadcast(visit.first_input_shape), *_product(visit, batch=1)]


def _product(visit: Visit, batch: int) -> list[BatchLayout]:
    """`[…, i, k] × […, k, j]`: rows of the result are rows of the first, columns those of the second."""
    # dA = dC·Bᵀ and dB = Aᵀ·dC. Samples along the rows of C are rows of dA too, while dB adds up over them. For
    # samples along the columns the roles are swapped. A batch dimension is in all three.
    if visit.dim < batch:
        return [visit.layout, visit.layout]
    if visit.dim == batch:
        return [visit.layout, BatchAxis.ABSENT]
    return [BatchAxis.ABSENT, visit.layout]


def matrix_vector(visit: Visit) -> list[BatchLayout]:
    """`[i, k] × [k]`: rows of the result are rows of the matrix."""
    return [visit.layout, BatchAxis.ABSENT]


def linear(visit: Visit) -> list[BatchLayout]:
    """Rows of the output are rows of the input; weight and bias belong to no sample."""
    rows = visit.dim < len(visit.shape) - 1
    count = len(visit.next_functions) - 1
    return [visit.layout, *[BatchAxis.ABSENT] * count] if rows else unknown(visit)


def first_dim_and_weights(visit: Visit) -> list[BatchLayout]:
    """Samples come first in the output and in the first input; weights and biases belong to none."""
    count = len(visit.next_functions) - 1
    return [visit.layout, *[BatchAxis.ABSENT] * count] if visit.dim == 0 else unknown(visit)


def layer_norm(visit: Visit) -> list[BatchLayout]:
    """Normalises the last dimensions; weights and biases belong to no sample."""
    count = len(visit.next_functions) - 1
    lead = len(visit.shape) - len(visit.saved("normalized_shape"))
    return [visit.layout, *[BatchAxis.ABSENT] * count] if visit.dim < lead else unknown(visit)


def frozen_batch_norm(visit: Visit) -> list[BatchLayout]:
    """With fixed statistics it scales and shifts channels; with those of the batch it mixes samples."""
    if visit.saved("training") or visit.dim == 1:
        return unknown(visit)
    return [visit.layout, BatchAxis.ABSENT, BatchAxis.ABSENT]


def attention(visit: Visit) -> list[BatchLayout]:
    """Keeps queries, keys and values of every sample and head apart; a mask is broadcast."""
    if visit.dim > 1 or visit.number > 0:
        return unknown(visit)
    # Grouped queries have fewer heads for keys and values than for queries, so one of their heads may serve several.
    sizes = [shape is None or shape[visit.dim] == visit.shape[visit.dim] for shape in visit.input_shapes[:3]]
    first: list[BatchLayout] = [visit.layout if same else BatchAxis.UNKNOWN for same in sizes]
    return [*first, *[visit.broadcast(shape) for shape in visit.input_shapes[3:]]]


# ---- tables and losses --------------------------------------------------------------------------------------


def table(visit: Visit) -> list[BatchLayout]:
    """Reads a table, which belongs to no sample; the weights of what is read do."""
    return [BatchAxis.ABSENT, *[BatchAxis.UNKNOWN] * (len(visit.next_functions) - 1)]


def classes(visit: Visit) -> list[BatchLayout]:
    """Losses `[n, …]` of scores `[n, classes, …]`: the scores have one dimension more, behind the first."""
    if visit.saved("reduction") != 0:
        return unknown(visit)
    return visit.all_inputs(visit.moved_to(visit.dim + (visit.dim > 0)))
