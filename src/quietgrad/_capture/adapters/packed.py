"""Recurrent layers on packed sequences that cannot be taken apart: each sequence is run again alone.

A packed sequence holds step t of all sequences that are long enough, then step t + 1, and so on: `[a1 b1 c1 a2 b2 a3]`
for lengths 3, 2 and 1. A sample's entries are not contiguous, and vmap takes no sequences of several lengths. So each
sequence is picked out of the pack, run again at its own length, and its gradient added to the sample that owns it. The
output of the replay has to be the recorded one. A record whose numbers are huge rounds otherwise alone than in the
pack. Its row is dropped, because whether a run is refused must not depend on one record.

Checked by: tests/attacks/test_refused_by_values.py
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from quietgrad._capture.adapter import Pieces
from quietgrad._capture.adapters.functional import called_with
from quietgrad._capture.adapters.replay import is_too_small, not_reproduced, rows_alike
from quietgrad._capture.call import Call, tensors_of
from quietgrad._capture.layout import Placement
from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import DenseGrad


def packed_pieces(
    call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
) -> Pieces:
    """Per-sample gradients of a module that was given a packed sequence."""
    given = call.arguments("input", "hx")
    rows, hx = given["input"], given.get("hx")
    n = len(backprops[0])
    full = {
        output.position: _in_place(output.shape, layout, b)
        for output, layout, b in zip(call.outputs, layouts, backprops, strict=True)
    }
    owner = _owners(call, rows, layouts, n)
    module = call.unit.module
    totals = {name: p.new_zeros(n, *p.shape) for name, p in _parameters(call).items()}
    # One replay for each sequence. The gradients at its own outputs are used, so that sequences of one sample add up
    # and those of others never enter.
    reproduced = torch.ones(n, dtype=torch.bool)
    for rank, sample in enumerate(owner):
        if sample >= 0:
            found, is_same = _gradient(call, module, rows, hx, full, rank)
            reproduced[sample] &= is_same
            for name, gradient in found.items():
                totals[name][sample] += gradient if is_same else torch.nan  # the clip drops such a row
    if is_too_small(reproduced):
        raise not_reproduced(call)
    call.is_odd = not bool(reproduced.all())
    return {name: DenseGrad(total) for name, total in totals.items()}


def _in_place(
    shape: torch.Size, layout: Placement | None, b: Float[Tensor, "n ..."]
) -> tuple[Tensor, Tensor]:
    """The gradient as it arrived, and the sample of each of its elements (−1: nobody's)."""
    gradient, sample = b.new_zeros(shape.numel()), torch.full((shape.numel(),), -1)
    assert layout is not None
    # Numbered from 1, because places that belong to nobody are filled up with 0.
    number = layout.samples_first(torch.arange(1, shape.numel() + 1).view(shape), len(b)).reshape(len(b), -1)
    there = number > 0
    gradient[number[there] - 1] = b.reshape(len(b), -1)[there]
    sample[number[there] - 1] = torch.arange(len(b))[:, None].expand_as(number)[there]
    return gradient.view(shape), sample.view(shape)


def _owners(call: Call, rows: PackedSequence, layouts: list[Placement | None], n: int) -> list[int]:
    """The sample of each sequence in the order of the pack; −1 where it got no gradient."""
    found = [-1] * int(rows.batch_sizes[0])
    for output, layout in zip(call.outputs, layouts, strict=True):
        _, sample = _in_place(output.shape, layout, torch.zeros(n, *_shape_of(output.shape, layout, n)))
        for rank in range(len(found)):
            mine = sample[_places(rows, rank)] if output.position == 0 else sample[:, _column(rows, rank)]
            for owner in mine.unique().tolist():
                if owner >= 0 and found[rank] not in (-1, owner):
                    raise PrivacyError(
                        f"A sequence of module {call.module_name!r} belongs to several samples."
                    )
                found[rank] = max(found[rank], owner)
    return found


def _shape_of(shape: torch.Size, layout: Placement | None, n: int) -> torch.Size:
    assert layout is not None
    return layout.samples_first(torch.zeros(shape), n).shape[1:]


def _places(rows: PackedSequence, rank: int) -> Int[Tensor, " t"]:
    """Where the steps of one sequence lie in the pack."""
    sizes = rows.batch_sizes
    starts = sizes.cumsum(0) - sizes
    return (starts + rank)[sizes > rank]


def _column(rows: PackedSequence, rank: int) -> int:
    """Where the states of one sequence lie: they are in the order before sorting."""
    return rank if rows.sorted_indices is None else int(rows.sorted_indices[rank])


def _parameters(call: Call) -> dict[str, Tensor]:
    named = dict(call.unit.module.named_parameters())
    return {name: named[name].detach() for name in call.unit.names}


def _gradient(
    call: Call,
    module: nn.Module,
    rows: PackedSequence,
    hx: Any,
    full: dict[int, tuple[Tensor, Tensor]],
    rank: int,
) -> tuple[dict[str, Tensor], bool]:
    """One sequence alone: ⟨outputs, their gradients⟩ differentiated, and whether the recorded outputs came again."""
    places, column = _places(rows, rank), _column(rows, rank)
    state = (
        None if hx is None else tuple(h[:, column] for h in hx) if isinstance(hx, tuple) else hx[:, column]
    )
    leaves = {name: p.clone().requires_grad_() for name, p in _parameters(call).items()}
    with torch.enable_grad():
        result = called_with(module, leaves, (rows.data[places], *([] if state is None else [state])), {})
        outputs = tensors_of((result,), {})
        # A pack has two tensors, or four where it was sorted. The first are the rows; states follow.
        parts = [outputs[0], *[None] * (len(tensors_of((rows,), {})) - 1), *outputs[1:]]
        products = []
        for position, (gradient, _) in full.items():
            mine = gradient[places] if position == 0 else gradient[:, column]
            part = parts[position]
            assert part is not None
            products.append((part * mine).sum())
        found = torch.autograd.grad(
            torch.stack(products).sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    recorded, again = call.results[0][places], outputs[0].detach()
    is_same = bool(rows_alike(call, again[None], recorded[None]))
    return dict(zip(leaves, found, strict=True)), is_same
