"""Gradients of matrices as sums of outer products, G_n = Σ_t b_t a_tᵀ: what matrix layers give without forming them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad, FusionKey, SmallBlocks, scale_each
from quietgrad._gradients.gram import GramNorms, factor_norms
from quietgrad._gradients.row_arithmetic import (
    TINY,
    at_least_single,
    outer_sums,
    row_squared_norms,
    weighted_products,
    weighted_rows,
)
from quietgrad._gradients.tuning import TunableGrads, round_to_power_of_two
from quietgrad._kernels.block_rows import Factors
from quietgrad._kernels.rounding import POSITIONS

ALGORITHMS = ("outer", "ghost", "formed", "chunked")
CHEAP_GRAM = 0.4
"""Gram matrices that cost less than this part of the sum's product are never beaten by keeping formed gradients."""
_FORMED = 1 << 22
"""Numbers of gradients that are formed at a time."""
SMALL_PRODUCT = 1 << 19
"""Multiplications of a sum of outer products that take less time in float64 than the operations around them."""
HUGE = 2.0**120
"""The square of a factor's length beyond which the other one, scaled by a weight, may leave float32's normal range."""


class FactoredGrad(TunableGrads):
    """Per-sample gradients G_n = Σ_t b_t a_tᵀ of a matrix `[o, i]`, as factors.

    Stable public attributes, for representations that work on factors:
        a: inputs `[n, t, i]`; b: output gradients `[n, t, o]`; matrix: (o, i); shape: the block's shape, with
        `prod(shape) == o·i` (a convolution's kernel is flattened to `[out, in·kh·kw]`).
    `FactoredGrad(new_a, new_b)` is a new block from mapped factors, of shape `(o', i')` unless one is given.

    Algorithms for norms and sums:
        outer   t = 1: ‖G‖ = ‖a‖‖b‖.
        ghost   the Gram norm; one matmul for the sum.
        formed  every G_n, kept between norm and sum.
        chunked every G_n formed a few samples at a time and dropped again.

    Example:
        block = qg.FactoredGrad(a=torch.randn(8, 1, 5), b=torch.randn(8, 1, 3))  # a linear layer's
        norms = block.squared_norms()
    """

    def __init__(
        self,
        a: Float[Tensor, "n t i"],
        b: Float[Tensor, "n t o"],
        shape: torch.Size | None = None,
        *,
        algorithm: str | None = None,
        chunk: int | None = None,
        run: int = POSITIONS,
    ) -> None:
        self.a, self.b = at_least_single(a), at_least_single(b)
        self._run = run
        self._shape = torch.Size((b.shape[2], a.shape[2])) if shape is None else shape
        assert math.prod(self._shape) == b.shape[2] * a.shape[2]
        self.algorithm = self.rule() if algorithm is None else algorithm
        assert self.algorithm in ALGORITHMS, self.algorithm
        self._chunk = chunk or max(1, _FORMED // max(1, math.prod(self._shape)))
        self._formed: Tensor | None = None
        self._gram: GramNorms | None = None
        self._lengths: tuple[Tensor, Tensor] | None = None

    @property
    def samples(self) -> int:
        return self.a.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def matrix(self) -> tuple[int, int]:
        """(o, i)."""
        return self.b.shape[2], self.a.shape[2]

    @property
    def is_outer(self) -> bool:
        """One position a sample: G_n = b aᵀ."""
        return self.a.shape[1] == 1

    def factors(self) -> tuple[Float[Tensor, "n t i"], Float[Tensor, "n t o"]]:
        """(a, b) with G_n = Σ_t b_t a_tᵀ."""
        return self.a, self.b

    def lengths(self) -> Float64[Tensor, " n"]:
        """Σ_t ‖a_t‖‖b_t‖, what all positions add up to at most."""
        if self.algorithm == "ghost":
            return self._ghost().lengths
        # By the triangle inequality ‖Σ_t b_t a_tᵀ‖ ≤ Σ_t ‖a_t‖‖b_t‖. The quotient of the two says how much positions
        # cancel, and with it how coarsely a sum over positions is rounded.
        norms = (row_squared_norms(factor.flatten(0, 1)) for factor in self.factors())
        a, b = (squared.view(self.samples, -1).sqrt() for squared in norms)
        return (a * b).sum(1)

    # ---- algorithms -----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.a.device

    def rule(self) -> str:
        t, (o, i) = self.a.shape[1], self.matrix
        if self.is_outer:
            return "outer"
        # Gram matrices of t positions take t²·(i + o) multiplications, forming takes t·i·o: the rule compares the two.
        # It only serves deterministic runs; others measure.
        return "ghost" if t * (i + o) < i * o else "chunked"

    def memory_cost(self) -> dict[str, int]:
        if self.is_outer:
            return {"outer": 0}
        size, (o, i) = self.a.element_size(), self.matrix
        # Bytes beyond the factors, which the backward has left in any case. Gram matrices and chunks are freed before
        # the next layer, so only formed gradients count.
        algorithms = {"ghost": 0, "formed": self.samples * o * i * size, "chunked": 0}
        t = self.a.shape[1]
        if self.samples * t**2 * size > (1 << 28):
            del algorithms[
                "ghost"
            ]  # Gram matrices of very long sequences would be larger than what they avoid
        elif t * (i + o) < CHEAP_GRAM * i * o:
            del algorithms["formed"]  # even to try it would take more memory than the rest of the step
        return algorithms

    def with_algorithm(self, algorithm: str, chunk: int | None = None) -> FactoredGrad:
        return FactoredGrad(self.a, self.b, self._shape, algorithm=algorithm, chunk=chunk)

    def work(self) -> dict[str, float]:
        t, (o, i) = self.a.shape[1], self.matrix
        product = float(t * o * i)
        # Multiplications for one sample. Norms by Gram matrices cost t²(o + i), and the sum is one product on top. To
        # form costs a product too, after which norm and sum only read each number once. Chunks are formed twice.
        ghost = t * t * (o + i) + product
        return {"outer": product, "ghost": ghost, "formed": product + 2 * o * i, "chunked": 2 * product}

    def first(self, count: int) -> FactoredGrad:
        return FactoredGrad(
            self.a[:count], self.b[:count], self._shape, algorithm=self.algorithm, chunk=self._chunk
        )

    def signature(self) -> tuple[Any, ...]:
        return (round_to_power_of_two(self.samples), *self.a.shape[1:], self.b.shape[2], self.a.dtype)

    # ---- norms and sums -------------------------------------------------------------------------------------

    def squared_norms(self) -> Float64[Tensor, " n"]:
        if self.algorithm == "outer":
            # ‖b aᵀ‖ = ‖a‖·‖b‖ for one position: nothing is multiplied out.
            a, b = self._squared_lengths()
            return a * b
        if self.algorithm == "ghost":
            # Σ_st ⟨a_s, a_t⟩⟨b_s, b_t⟩ is exact in real numbers, but positions that cancel leave mostly rounding. The
            # few samples where that happens are formed.
            return self._ghost().with_formed(lambda careful: self._rows(careful).squared_norms())
        if self.algorithm == "formed":
            return row_squared_norms(self._keep())
        parts = [row_squared_norms(part) for _, part in self.chunks()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        if self.algorithm == "formed":
            return weighted_rows(weights, self._keep().flatten(1)).reshape(self._shape)
        if self.algorithm == "chunked":
            return self._chunked_sum(weights)
        if self.algorithm == "outer" and self.device.type != "cpu":
            return self._scaled_outer_sum(weights)
        if self._ordinary(weights) if self.algorithm == "outer" else not self._ghost().cancels:
            return self._matmul_sum(weights)
        # A batched product rounds relative to its largest terms. Samples that cancel or have extreme factors would come
        # out wrong by more than their clip allows, so they are summed on their own.
        careful = self._ghost().careful if self.algorithm == "ghost" else self._extreme(weights)
        total = self._matmul_sum(weights.masked_fill(careful, 0.0))
        return total + self._rows(careful).weighted_sum(weights[careful])

    def dense(self) -> Float[Tensor, "n *shape"]:
        return (
            outer_sums(self.a, self.b).reshape(self.samples, *self._shape)
            if self._formed is None
            else self._formed
        )

    def scale(
        self,
        *,
        left: Float[Tensor, "o ..."] | None = None,
        right: Float[Tensor, "i ..."] | None = None,
    ) -> FactoredGrad:
        a, b = scale_each(self.a, right), scale_each(self.b, left, transposed=True)
        return FactoredGrad(a, b, self._shape, algorithm=self.algorithm, chunk=self._chunk)

    def drop_factors(self) -> BlockGrads:
        if self.algorithm == "formed":
            return DenseGrad(self._keep())
        # Norms are computed now, while the factors are still in the cache, and kept: the sum needs the factors alone.
        if self.algorithm == "ghost":
            self._ghost()
        elif self.algorithm == "outer" and not self._is_small:
            self._squared_lengths()
        return self

    # ---- what it costs --------------------------------------------------------------------------------------

    @property
    def layer_inputs(self) -> Tensor | None:
        return self.a

    @property
    def fusion_key(self) -> FusionKey | None:
        small = self.algorithm == "outer" and self._is_small
        return FusionKey(SmallBlocks, (self.dtype, self.device)) if small else None

    @property
    def _is_small(self) -> bool:
        """Whether one operation for all small blocks takes less time than operations of its own."""
        work = self.a.numel() * self.b.shape[2]
        return self.is_outer and work <= SMALL_PRODUCT and self.device.type == "cpu"

    def row_factors(self) -> Factors:
        """Return the rows of both factors, of one position."""
        return self.a[:, 0], self.b[:, 0]

    # ---- parts ----------------------------------------------------------------------------------------------

    def _ghost(self) -> GramNorms:
        if self._gram is None:
            self._gram = factor_norms(self.a, self.b)
        return self._gram

    def _rows(self, chosen: Bool[Tensor, " n"]) -> FactoredGrad:
        """Rows whose tokens cancel: in a batched matmul they would add mostly rounding, so they are formed.

        One outer product is formed in float64: its factors may be beyond float32 where it is not.
        """
        a, b = self.a[chosen], self.b[chosen]
        a, b = (a.double(), b.double()) if self.is_outer else (a, b)
        return FactoredGrad(a, b, self._shape, algorithm="chunked", chunk=self._chunk)

    def _ordinary(self, weights: Float[Tensor, " n"]) -> bool:
        """Whether nothing is extreme, as nearly always: three numbers say so, instead of a test of every row."""
        if not self.samples:
            return True
        longest = float(torch.maximum(*self._squared_lengths()).max())
        return longest <= HUGE and float(weights.min()) >= TINY

    def _extreme(self, weights: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Outer products of which float32 might flush a scaled factor to zero, or round it coarsely."""
        a, b = self._squared_lengths()
        return ((weights != 0) & (weights.abs() < TINY)) | (torch.maximum(a, b) > HUGE)

    def _squared_lengths(self) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
        """‖a‖², ‖b‖² of one position a sample."""
        if self._lengths is None:
            self._lengths = row_squared_norms(self.a), row_squared_norms(self.b)
        return self._lengths

    def _matmul_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        return weighted_products(self.b, self.a, weights, self._run).reshape(self._shape)

    def _scaled_outer_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        """Σ_n w_n b_n a_nᵀ without asking the device whether a row is extreme.

        Both factors are scaled to lengths between ½ and 1 by powers of two, which is exact, and the weight by the
        inverse: w‖a‖‖b‖ is at most the clip's bound, so that float32 holds it, however long or short the factors are.
        What float32 flushes to zero afterwards is below 2⁻¹²⁶ an entry.
        """
        a, b = self.a, self.b
        exponents = []
        for squared in self._squared_lengths():
            _, exponent = torch.frexp(squared.sqrt().masked_fill(weights == 0, 1.0))
            exponents.append(exponent)
        w = torch.ldexp(weights.double(), exponents[0] + exponents[1])
        a, b = (_shift(rows, exponent) for rows, exponent in ((a, exponents[0]), (b, exponents[1])))
        return weighted_products(b, a, w, self._run).reshape(self._shape)

    def _keep(self) -> Float[Tensor, "n *shape"]:
        if self._formed is None:
            self._formed = self.dense()
        return self._formed

    def _chunked_sum(self, weights: Float[Tensor, " n"]) -> Float64[Tensor, "*shape"]:
        total = self.a.new_zeros(math.prod(self._shape), dtype=torch.float64)
        for rows, part in self.chunks():
            total += weighted_rows(weights[rows], part.flatten(1))
        return total.reshape(self._shape)

    def chunks(self) -> Iterator[tuple[slice, Float[Tensor, "c o i"]]]:
        """The gradients formed a few samples at a time, each with the rows that it holds."""
        for start in range(0, self.samples, self._chunk):
            rows = slice(start, start + self._chunk)
            yield rows, outer_sums(self.a[rows], self.b[rows])


def _shift(rows: Float[Tensor, "n t d"], exponent: Int[Tensor, " n"]) -> Float[Tensor, "n t d"]:
    """rows·2^−exponent; in two factors, since 2¹⁴⁰ is no float32."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    for part in (half, exponent - half):
        rows = rows * torch.ldexp(torch.ones_like(part, dtype=rows.dtype), -part)[:, None, None]
    return rows
