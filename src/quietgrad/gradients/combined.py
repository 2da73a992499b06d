"""Several uses of one parameter (a module called twice, tied weights): the norm is that of their sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.convolution import ConvGrad
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.indexed import IndexedGrad


def combine(pieces: Sequence[BlockGrads]) -> BlockGrads:
    """One block whose gradients are the sums of the pieces'."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, FactoredGrad) for piece in pieces):
        return _concatenated([piece for piece in pieces if isinstance(piece, FactoredGrad)])
    if all(isinstance(piece, ConvGrad) for piece in pieces) and _alike(pieces):
        convs = [piece for piece in pieces if isinstance(piece, ConvGrad)]
        inputs, backprops = (
            torch.cat([c.inputs for c in convs], 1),
            torch.cat([c.backprops for c in convs], 1),
        )
        return ConvGrad(inputs, backprops, convs[0].window)
    if all(isinstance(piece, IndexedGrad) for piece in pieces):
        tables = [piece for piece in pieces if isinstance(piece, IndexedGrad)]
        return IndexedGrad(
            torch.cat([table.ids for table in tables]),
            torch.cat([table.owner for table in tables]),
            torch.cat([table.values for table in tables]),
            samples=tables[0].samples,
            table=tables[0].shape[0],
        )
    total = pieces[0].dense().clone()
    for piece in pieces[1:]:
        total += piece.dense().reshape(total.shape)
    return DenseGrad(total)


def _concatenated(pieces: Sequence[FactoredGrad]) -> FactoredGrad:
    """Factors concatenate along t: Σ_t over all uses."""
    a, b = torch.cat([piece.a for piece in pieces], 1), torch.cat([piece.b for piece in pieces], 1)
    return FactoredGrad(a, b, pieces[0].shape)


def _alike(pieces: Sequence[BlockGrads]) -> bool:
    kinds = {(c.window, c.inputs.shape[2:], c.backprops.shape[2:]) for c in pieces if isinstance(c, ConvGrad)}
    return len(kinds) == 1
