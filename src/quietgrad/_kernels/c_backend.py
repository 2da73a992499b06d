"""The C kernels, registered for the CPU: importing this module is what makes them available."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quietgrad._kernels import (
    block_rows,
    conv_rows,
    gaussian_trials,
    gram_rows,
    indexed_rows,
    key_streams,
    noise_steps,
    norm_rows,
    product_sums,
    rows,
    thin_rows,
)
from quietgrad._kernels.levels import OFF, level
from quietgrad._kernels.library import is_float32
from quietgrad._kernels.registry import register

KERNELS: tuple[tuple[Callable[..., Any], Callable[..., bool]], ...] = (
    (rows.row_squared_norms, is_float32),
    (rows.weighted_rows, lambda _, rows: is_float32(rows)),
    (block_rows.block_norms, block_rows.takes_blocks),
    (block_rows.block_sums, block_rows.takes_blocks),
    (indexed_rows.table_pairs, indexed_rows.takes_entries),
    (indexed_rows.table_sums, indexed_rows.takes_sums),
    (thin_rows.each_times, thin_rows.takes_thin),
    (thin_rows.lifted_rows, thin_rows.takes_lifts),
    (product_sums.products_in_runs, product_sums.takes_products),
    (product_sums.patch_products, product_sums.takes_patches),
    (gram_rows.gram_sums, lambda a, b, _: is_float32(a, b)),
    (conv_rows.kernel_gradients, conv_rows.takes_convolution),
    (norm_rows.norm_gradients, is_float32),
    (key_streams.key_stream, lambda *_: key_streams.aes_instructions() > 0),
    (gaussian_trials.draw_tents, lambda *_: True),
    (gaussian_trials.draw_boxes, lambda *_: True),
    (noise_steps.add_steps, noise_steps.takes_pieces),
)
"""Each kernel has the name of its operation; beside it, which arguments it takes."""


def _where_built(supports: Callable[..., bool]) -> Callable[..., bool]:
    """Ask for the library first: a predicate may then ask for the level."""
    return lambda *args, **kwargs: level() != OFF and supports(*args, **kwargs)


# Registered at import, whether the library was built or not: the predicate asks at every call, so that a test or the
# environment can switch kernels off at any time.
for _run, _supports in KERNELS:
    register(_run.__name__, device="cpu", backend="C", run=_run, supports=_where_built(_supports))
