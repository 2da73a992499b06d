"""Nested tensors: a batch whose records have different numbers of rows.

A jagged nested tensor keeps the rows of all records one after the other. A layer's factors are those rows, and which
record owns each of them is found by probing, as after `x[mask]`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quietgrad._errors import PrivacyError


def rows_of(x: Tensor) -> Tensor:
    """Return the rows of a nested tensor, joined; any other tensor as it is.

    Raises:
        PrivacyError: its rows do not lie one after the other.

    Checked by: tests/capture/test_ragged_batches.py
    """
    if not x.is_nested:
        return x
    # Of a transposed nested tensor, or one with holes, rows of `values()` would not be the rows that a layer saw.
    if x.layout != torch.jagged or x._lengths is not None or x._ragged_idx != 1:  # type: ignore[attr-defined]
        raise PrivacyError(
            "Got a nested tensor that is strided, transposed or has holes: its rows have no order that gradients could "
            "be attributed in. Make it with torch.nested.nested_tensor(records, layout=torch.jagged), or call "
            ".contiguous()."
        )
    rows: Tensor = x.values()
    return rows


def nested_replay(module: str) -> PrivacyError:
    """Return the refusal of nested tensors for a module that is run again record by record."""
    return PrivacyError(
        f"A {module} has parameters of its own and takes a nested tensor, so it cannot be run again record by record. "
        "Give it x.to_padded_tensor(0.0) with a mask, or keep its parameters in layers such as nn.Linear."
    )
