"""Many small blocks side by side, so that one operation serves all small layers, biases and scales of a model.

A small model takes longer to start operations than to compute them. So the norms of all blocks with few numbers are one
operation, and their sums another. Both are in float64 throughout: no weight is too small, no factor too long.

Checked by: tests/kernels/test_block_rows.py, tests/laws/test_law1_per_sample.py, tests/laws/test_law2_floating_point.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.row_arithmetic import row_squared_norms, weighted_rows, zero_rows
from quietgrad._kernels.block_rows import Factors
from quietgrad._kernels.registry import operation


def device_of_blocks(blocks: Sequence[Factors], *_: Tensor) -> str:
    """Return the type of the device on which the blocks lie."""
    kind: str = blocks[0][1].device.type
    return kind


@operation(device_of_blocks)
def block_norms(blocks: Sequence[Factors]) -> Float64[Tensor, " n"]:
    """Compute Σ over blocks of ‖b_n a_nᵀ‖² in float64, never below the truth.

    Checked by: tests/kernels/test_block_rows.py
    """
    vectors = [b for a, b in blocks if a is None]
    norms = [row_squared_norms(torch.cat(vectors, 1))] if vectors else []
    # ‖b aᵀ‖ = ‖a‖·‖b‖: nothing is multiplied out.
    norms += [row_squared_norms(a) * row_squared_norms(b) for a, b in blocks if a is not None]
    return torch.stack(norms).sum(0)


@operation(device_of_blocks)
def block_sums(blocks: Sequence[Factors], weights: Float[Tensor, " n"]) -> Float64[Tensor, " p"]:
    """Compute Σ_n w_n b_n a_nᵀ of all blocks, one after the other; a row of weight 0 adds exactly 0.

    Checked by: tests/kernels/test_block_rows.py
    """
    vectors = [b for a, b in blocks if a is None]
    summed = iter(
        weighted_rows(weights, torch.cat(vectors, 1)).split([b.shape[1] for b in vectors]) if vectors else ()
    )
    w, dropped = weights.double()[:, None], weights == 0
    sums = [
        next(summed).double()
        if a is None
        else ((zero_rows(b, dropped).double() * w).T @ zero_rows(a, dropped).double()).flatten()
        for a, b in blocks
    ]
    return torch.cat(sums)
