"""Backwards in which zero times anything is zero, for batches that hold a number that is not finite.

The backward of loss_i sends exact zeros into the paths of all other samples. In floating point, zero times another
sample's NaN or infinity is NaN. Where samples meet (a tensor that they share, an index), it becomes NaN in the row of
sample i too. Then one bad record silences everybody. Worked example with a scale s that two samples share:

    loss_0 = s·1,  loss_1 = s·NaN         d loss_0/ds = 1·1 + 0·NaN = NaN, but the truth is 1

So the backwards are run again with two changes:

1. After each operation, gradient entries that are not finite become zero.
2. A product adds up over its terms before that, too late to tell them apart. What it multiplies gradients with
   therefore loses its entries that are not finite beforehand. A quotient also loses the zeros of its divisor.

Formal guarantee, for every row taken by this module. Let r_i be the ordinary row of sample i, without the others.

- It depends on record i alone. By induction, the gradients on the paths of others are exact zeros: an operation makes
  zero or something not finite of them, and the latter becomes zero.
- If r_i is finite, the row equals r_i. A number that is not finite stays so in sums and products, so none of them
  entered r_i, but those that a selection (where, relu, max) removed whatever they were.
- If r_i is not finite, the ordinary backward shows that with or without the other records, and this one replaces it.

Limits: an operation that adds up over samples and is none of `PRODUCTS` (a power of a shared tensor), and products
inside activation checkpointing, whose saved tensors are out of reach. A loop over `PoissonBatches` has neither limit:
it gets such a micro-batch again without the bad record (`_independence.bad_records`).

Checked by: tests/attacks/test_not_a_number_of_others.py
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.autograd.graph import Node

PRODUCTS = re.compile(
    "(Addbmm|Addcmul|Addmm|Addmv|Addr|Baddbmm|Bmm|Convolution|Div|Dot|Lerp|Linear|Mkldnn.*|Mm|Mul|Mv)Backward"
)
"""Operations whose gradient is that of their output times what they saved."""


@contextlib.contextmanager
def finite_gradients(nodes: Iterable[Node]) -> Iterator[None]:
    """Let no number that is not finite pass these nodes in the backwards inside this context.

    The graph is not to be used for ordinary backwards afterwards.
    """
    handles = []
    for node in nodes:
        if PRODUCTS.match(node.name()):
            # A product adds over its inner dimension within one kernel. NaN in one factor has reached the sum before
            # any hook sees it, so the factor itself is replaced.
            _clean_saved(node)
        if node.next_functions:
            handles.append(node.register_hook(_clean_gradients))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Ask whether every number is finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def zeroed(x: Tensor) -> Tensor:
    """Replace what is not finite by zero."""
    return x if not x.is_floating_point() or all_finite([x]) else x.nan_to_num(0.0, 0.0, 0.0)


def _clean_gradients(
    inputs: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    return tuple(None if gradient is None else zeroed(gradient) for gradient in inputs)


def _clean_saved(node: Node) -> None:
    """Replace saved factors; autograd takes what the first hook returns in the place of what it saved."""
    for name in vars(type(node)):
        if name.startswith("_raw_saved_"):
            clean = _clean_divisor if node.name() == "DivBackward0" and name.endswith("_other") else zeroed
            # There is nothing to clean in a factor that was not saved, and no access to one under other hooks.
            with contextlib.suppress(RuntimeError, AttributeError):
                getattr(node, name).register_hooks(clean, _same)


def _clean_divisor(x: Tensor) -> Tensor:
    """Replace divisors by which every gradient becomes infinite or NaN; an infinite one makes it zero, and stays."""
    return torch.where(x.isnan() | (x == 0), 1.0, x)


def _same(x: Tensor) -> Tensor:
    return x
