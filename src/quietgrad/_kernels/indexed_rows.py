"""Gradients of tables in C, equal ids found by hashing; the reference is `_gradients.indexed`."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import function, has_function, is_float32
from quietgrad._kernels.rounding import slack

Pairs = tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Float[Tensor, "pairs o"], Float64[Tensor, " n"]]
"""Ids, owners and values, each pair of an id and an owner once, and ‖g_n‖² of each sample."""


def takes_entries(ids: Tensor, owner: Tensor, values: Tensor, *_: object) -> bool:
    """Tell whether there are whole numbers for ids and owners, and float32 values."""
    whole = ids.dtype == owner.dtype == torch.int64
    return whole and is_float32(values) and has_function("qg_table_pairs")


def table_pairs(
    ids: Int[Tensor, " m"], owner: Int[Tensor, " m"], values: Float[Tensor, "m o"], samples: int, _table: int
) -> Pairs:
    """Add up the values of equal ids of each sample, in their order."""
    ids, owner, values = ids.contiguous(), owner.contiguous(), values.contiguous()
    count, length = values.shape
    found_ids, found_owner, found = torch.empty_like(ids), torch.empty_like(owner), torch.empty_like(values)
    squares = torch.zeros(samples, dtype=torch.float64)
    made: int = function("qg_table_pairs")(
        ids.data_ptr(),
        owner.data_ptr(),
        values.data_ptr(),
        count,
        length,
        found_ids.data_ptr(),
        found_owner.data_ptr(),
        found.data_ptr(),
        squares.data_ptr(),
        level_number(),
    )
    if made == -1:  # samples are not one after the other
        order = owner.argsort(stable=True)
        return table_pairs(ids[order], owner[order], values[order], samples, _table)
    if made < 0:
        raise MemoryError("No memory for the gradient of a table.")
    squares.mul_(1 + slack(torch.float64, count * length))
    return found_ids[:made], found_owner[:made], found[:made], squares


def takes_sums(ids: Tensor, owner: Tensor, values: Tensor, _: Tensor, total: Tensor) -> bool:
    """Tell whether the sum is float64 in one run of memory, and the entries are as above."""
    return takes_entries(ids, owner, values) and total.dtype == torch.float64 and total.is_contiguous()


def table_sums(
    ids: Int[Tensor, " m"],
    owner: Int[Tensor, " m"],
    values: Float[Tensor, "m o"],
    weights: Float[Tensor, " n"],
    total: Float64[Tensor, "v o"],
) -> None:
    """Add w·value of every entry to its row of `total`, in their order."""
    ids, owner, values = ids.contiguous(), owner.contiguous(), values.contiguous()
    wide = weights.double().contiguous()
    count, length = values.shape
    function("qg_table_sums")(
        ids.data_ptr(),
        owner.data_ptr(),
        values.data_ptr(),
        wide.data_ptr(),
        count,
        length,
        total.data_ptr(),
        level_number(),
    )
