"""Several uses of one parameter (a module called twice, tied weights): the norm is that of their sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.tied import TiedGrad


def combine(pieces: Sequence[BlockGrads]) -> BlockGrads:
    """One block whose gradients are the pieces' sums; formed only where kinds do not join."""
    # Uses of one parameter have to be added before the norm is taken: clipping each use by itself would give a sample
    # several times its share. Sums of like kinds stay unformed, because outer products of another use are only
    # further positions.
    factored = [piece for piece in pieces if isinstance(piece, FactoredGrad)]
    tables = [piece for piece in pieces if isinstance(piece, IndexedGrad)]
    convs = [piece for piece in pieces if isinstance(piece, ConvGrad)]
    if len(factored) + len(tables) == len(pieces):
        if not tables:
            return _concatenate(factored)
        return TiedGrad(_merge(tables), _concatenate(factored)) if factored else _merge(tables)
    if len(convs) == len(pieces) and len({(c.window, c.inputs.shape, c.backprops.shape) for c in convs}) == 1:
        # The second dimension counts pictures of one sample, so further uses of the same kernel are further pictures.
        inputs, backprops = (
            torch.cat(parts, 1) for parts in zip(*((c.inputs, c.backprops) for c in convs), strict=True)
        )
        return ConvGrad(inputs, backprops, convs[0].window)
    total = pieces[0].dense().clone()
    for piece in pieces[1:]:
        total += piece.dense().reshape(total.shape)
    return DenseGrad(total)


def _concatenate(pieces: Sequence[FactoredGrad]) -> FactoredGrad:
    """Factors concatenate along t: Σ_t over all uses."""
    if len(pieces) == 1:
        return pieces[0]
    a, b = torch.cat([piece.a for piece in pieces], 1), torch.cat([piece.b for piece in pieces], 1)
    return FactoredGrad(a, b, pieces[0].shape)


def _merge(tables: Sequence[IndexedGrad]) -> IndexedGrad:
    """Entries of equal sample and row add up."""
    if len(tables) == 1:
        return tables[0]
    most = [table.most for table in tables if table.most is not None]
    return IndexedGrad(
        torch.cat([table.ids for table in tables]),
        torch.cat([table.owner for table in tables]),
        torch.cat([table.values for table in tables]),
        samples=tables[0].samples,
        table=tables[0].shape[0],
        most=sum(most) if len(most) == len(tables) else None,
    )
