"""User-level privacy: the gradients of a user's records become one, ḡ = w·Σ_j g_j, before anything is clipped.

Formal guarantee: row u of what is pooled depends on the records of user u alone, to the last bit. Whatever is not
finite among them makes that row not finite, and no other. Checked by: tests/users/test_laws_of_users.py
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Shaped
from numpy import ndarray
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._gradients.tied import TiedGrad
from quietgrad._gradients.zero import ZeroGrad


@dataclass(frozen=True, eq=False)
class Pooling:
    """Users whose records lie one after the other.

    Args:
        counts: the number of rows of each user, at least 1.
        weights: w of each user: one over the number of records, or 1 for sums.
        first: the row that the first user begins with; rows before it, and behind the last, belong to nobody here.
    """

    counts: Int64[ndarray, " users"]
    weights: Float64[ndarray, " users"]
    first: int = 0

    @property
    def users(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> slice:
        """Those of all users."""
        return slice(self.first, self.first + int(self.counts.sum()))

    def keeps(self, samples: int) -> bool:
        """Whether every row is a user of its own already: then there is nothing to do."""
        return self.users == samples and self.first == 0 and self._is_plain

    @cached_property
    def owners(self) -> Int64[Tensor, " rows"]:
        """The user of each of `rows`."""
        return torch.from_numpy(np.repeat(np.arange(self.users), self.counts))

    def add_rows(self, rows: Float[Tensor, "n *shape"]) -> Float[Tensor, "users *shape"]:
        """w·Σ_j of each user's rows."""
        mine = self.weigh_rows(rows)
        if len(mine) == self.users:
            return mine
        total = mine.new_zeros(self.users, *mine.shape[1:])
        return total.index_add_(0, self.owners.to(mine.device), mine)

    def weigh_rows(self, rows: Float[Tensor, "n *shape"]) -> Float[Tensor, "rows *shape"]:
        """Each user's rows times its weight."""
        mine = rows[self.rows]
        if self._is_plain:
            return mine
        return mine * self.row_weights.to(mine).view(-1, *[1] * (mine.dim() - 1))

    @cached_property
    def row_weights(self) -> Float64[Tensor, " rows"]:
        """w of each of `rows`."""
        return torch.from_numpy(np.repeat(self.weights, self.counts))

    def side_by_side(self, mine: Shaped[Tensor, "rows t *rest"]) -> Shaped[Tensor, "users t2 *rest"]:
        """A user's rows as positions of one sample; a user with fewer than others gets zeros, which add nothing."""
        most = int(self.counts.max(initial=1))
        if len(mine) == self.users * most:
            return mine.reshape(self.users, most * mine.shape[1], *mine.shape[2:])
        padded = mine.new_zeros(self.users * most, *mine.shape[1:])
        padded[self._places(most).to(mine.device)] = mine
        return padded.reshape(self.users, most * mine.shape[1], *mine.shape[2:])

    def _places(self, most: int) -> Int64[Tensor, " rows"]:
        """Return where each of `rows` goes if every user has room for `most`."""
        begins = np.arange(self.users) * most - (np.cumsum(self.counts) - self.counts)
        return torch.from_numpy(np.repeat(begins, self.counts) + np.arange(self.counts.sum()))

    @property
    def _is_plain(self) -> bool:
        return bool((self.weights == 1.0).all())


def pool(grads: BlockwiseGrads, pooling: Pooling) -> BlockwiseGrads:
    """Return the gradients of users: those of each one's records, weighted and added."""
    if pooling.keeps(grads.samples):
        return grads
    blocks = {name: pool_block(block, pooling) for name, block in grads.blocks.items()}
    return BlockwiseGrads(blocks, pooling.users, first_inputs=grads.first_inputs)


@functools.singledispatch
def pool_block(block: BlockGrads, pooling: Pooling) -> BlockGrads:
    """Pool one block, formed unless its kind is registered below."""
    return DenseGrad(pooling.add_rows(block.dense()))


@pool_block.register(ZeroGrad)
def _pool_zero(block: ZeroGrad, pooling: Pooling) -> ZeroGrad:
    return ZeroGrad(pooling.users, block.like)


@pool_block.register(FactoredGrad)
def _pool_factors(block: FactoredGrad, pooling: Pooling) -> FactoredGrad:
    """A user's records are further positions of one sequence: Σ_j Σ_t b_jt a_jtᵀ."""
    a, b = block.a[pooling.rows], pooling.weigh_rows(block.b)
    return FactoredGrad(pooling.side_by_side(a), pooling.side_by_side(b), block.shape)


@pool_block.register(ConvGrad)
def _pool_convolution(block: ConvGrad, pooling: Pooling) -> ConvGrad:
    """A user's records are further images of one sample."""
    inputs, backprops = block.inputs[pooling.rows], pooling.weigh_rows(block.backprops)
    return ConvGrad(pooling.side_by_side(inputs), pooling.side_by_side(backprops), block.window)


@pool_block.register(IndexedGrad)
def _pool_table(block: IndexedGrad, pooling: Pooling) -> IndexedGrad:
    """A user's entries of equal id add up."""
    mine = (block.owner >= pooling.rows.start) & (block.owner < pooling.rows.stop)
    rows = block.owner[mine] - pooling.first
    users = pooling.owners.to(rows.device)[rows]
    values = block.values[mine] * pooling.row_weights.to(block.values)[rows, None]
    return IndexedGrad(block.ids[mine], users, values, samples=pooling.users, table=block.shape[0])


@pool_block.register(TiedGrad)
def _pool_tied(block: TiedGrad, pooling: Pooling) -> TiedGrad:
    return TiedGrad(_pool_table(block.table, pooling), _pool_factors(block.matrix, pooling))
