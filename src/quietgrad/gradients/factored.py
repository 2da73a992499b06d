"""Gradients of matrices as sums of outer products, G_n = Σ_t b_t a_tᵀ: what matrix layers give without forming them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad.gradients.base import BlockGrads, zero_rows
from quietgrad.gradients.precision import row_squared_norms

OVERCLIP = 0.02
"""A rounding bound above this part of ‖G‖² would over-clip by 1%: such rows are formed instead."""


class FactoredGrad(BlockGrads):
    """Per-sample gradients G_n = Σ_t b_t a_tᵀ of a matrix `[o, i]`, held as their factors.

    Stable public attributes, for representations that work on factors:
        a: inputs `[n, t, i]`; b: output gradients `[n, t, o]`; matrix: (o, i); shape: the block's shape, with
        `prod(shape) == o·i` (a convolution's kernel is flattened to `[out, in·kh·kw]`).
    `FactoredGrad(new_a, new_b)` is a new block from mapped factors, of shape `(o', i')` unless told.

    Ways to a norm and a sum (`way`):
        outer   t = 1: ‖G‖ = ‖a‖‖b‖.
        ghost   ‖G‖² = Σ_ts (a_t·a_s)(b_t·b_s) plus its rounding bound; one matmul for the sum.
        formed  every G_n, kept between norm and sum.
        chunked every G_n formed a few samples at a time and dropped again.
    """

    ways: ClassVar[tuple[str, ...]] = ("outer", "ghost", "formed", "chunked")

    def __init__(
        self,
        a: Float[Tensor, "n t i"],
        b: Float[Tensor, "n t o"],
        shape: torch.Size | None = None,
        *,
        way: str | None = None,
        chunk: int | None = None,
    ) -> None:
        self.a, self.b = a, b
        self._shape = torch.Size((b.shape[2], a.shape[2])) if shape is None else shape
        assert math.prod(self._shape) == b.shape[2] * a.shape[2]
        self.way = self.rule() if way is None else way
        self._chunk = chunk or max(1, (1 << 24) // max(1, math.prod(self._shape)))
        self._formed: Tensor | None = None
        self._careful: Bool[Tensor, " n"] | None = None

    def rule(self) -> str:
        """The way by counting multiplications, used when nothing may be measured."""
        t, (o, i) = self.a.shape[1], self.matrix
        if t == 1:
            return "outer"
        return "ghost" if t * (i + o) < i * o else "chunked"

    @property
    def samples(self) -> int:
        return self.a.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def matrix(self) -> tuple[int, int]:
        """(o, i)."""
        return self.b.shape[2], self.a.shape[2]

    def factors(self) -> tuple[Float[Tensor, "n t i"], Float[Tensor, "n t o"]]:
        """(a, b) with G_n = Σ_t b_t a_tᵀ."""
        return self.a, self.b

    def squared_norms(self) -> Float64[Tensor, " n"]:
        if self.way == "outer":
            return self._outer_norms()
        if self.way == "ghost":
            return self._ghost_norms()
        if self.way == "formed":
            return row_squared_norms(self._keep())
        return torch.cat([row_squared_norms(part) for _, part in self._chunks(self.a, self.b)])

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        dropped = weights == 0
        if self.way == "formed":
            flat = zero_rows(self._keep(), dropped).flatten(1)
            return (weights.to(flat.dtype) @ flat).reshape(self._shape)
        if self.way == "chunked":
            return self._chunked_sum(weights)
        careful = self._careful_rows()
        total = self._matmul_sum(weights, dropped | careful)
        if bool(careful.any()):
            rows = careful.nonzero().flatten()
            total += FactoredGrad(self.a[rows], self.b[rows], self._shape, way="chunked").weighted_sum(
                weights[rows]
            )
        return total

    def dense(self) -> Float[Tensor, "n *shape"]:
        if self._formed is not None:
            return self._formed
        return form(self.a, self.b).reshape(self.samples, *self._shape)

    def project(self, directions: Float[Tensor, "k *shape"]) -> Float[Tensor, "n k"]:
        """⟨G_n, D_k⟩ = Σ_t b_tᵀ D_k a_t; formed a few samples at a time unless t = 1, where it never pays."""
        k, (o, i) = directions.shape[0], self.matrix
        if self.a.shape[1] == 1:
            mapped = self.a[:, 0] @ directions.reshape(k * o, i).T
            return (mapped.view(-1, k, o) @ self.b[:, 0, :, None]).squeeze(2)
        flat = directions.flatten(1).T
        parts = [part.flatten(1) @ flat for _, part in self._chunks(self.a, self.b)]
        return torch.cat(parts) if parts else self.a.new_zeros(0, k)

    def weighted_sums(self, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
        """k sums at once: one matmul of stacked factors for t = 1, else over formed chunks."""
        k, (o, i) = weights.shape[0], self.matrix
        weights = weights.to(self.a.dtype)
        if self.a.shape[1] == 1:
            scaled = weights[:, :, None] * self.b[:, 0]
            return (scaled.transpose(1, 2).reshape(k * o, -1) @ self.a[:, 0]).reshape(k, *self._shape)
        total = self.a.new_zeros(k, o * i)
        for rows, part in self._chunks(self.a, self.b):
            total += weights[:, rows] @ part.flatten(1)
        return total.reshape(k, *self._shape)

    def _outer_norms(self) -> Float64[Tensor, " n"]:
        assert self.a.shape[1] == 1
        return row_squared_norms(self.a) * row_squared_norms(self.b)

    def _ghost_norms(self) -> Float64[Tensor, " n"]:
        squared, bound = gram_squared_norms(self.a, self.b)
        careful = self._careful_rows(squared, bound)
        norms = squared.clamp_min(0.0) + bound
        if bool(careful.any()):
            rows = careful.nonzero().flatten()
            norms[rows] = FactoredGrad(self.a[rows], self.b[rows], way="chunked").squared_norms()
        return norms

    def _careful_rows(self, squared: Tensor | None = None, bound: Tensor | None = None) -> Bool[Tensor, " n"]:
        """Rows whose tokens cancel: what a batched matmul would add of them is mostly rounding."""
        if self.way == "outer":
            return torch.zeros(self.samples, dtype=torch.bool, device=self.a.device)
        if self._careful is None:
            if squared is None or bound is None:
                squared, bound = gram_squared_norms(self.a, self.b)
            overclipped = bound > OVERCLIP * squared
            self._careful = overclipped | ~squared.isfinite() | (squared < 1e-24)
        return self._careful

    def _matmul_sum(self, weights: Float[Tensor, " n"], dropped: Bool[Tensor, " n"]) -> Tensor:
        a, b = zero_rows(self.a, dropped), zero_rows(self.b, dropped)
        w = weights.to(a.dtype).view(-1, 1, 1)
        if a.shape[2] < b.shape[2]:
            a = a * w
        else:
            b = b * w
        return (b.flatten(0, 1).T @ a.flatten(0, 1)).reshape(self._shape)

    def _keep(self) -> Float[Tensor, "n *shape"]:
        if self._formed is None:
            self._formed = self.dense()
        return self._formed

    def _chunked_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        dropped = weights == 0
        total = self.a.new_zeros(math.prod(self._shape))
        w = weights.to(self.a.dtype)
        for rows, part in self._chunks(zero_rows(self.a, dropped), zero_rows(self.b, dropped)):
            total += w[rows] @ part.flatten(1)
        return total.reshape(self._shape)

    def _chunks(self, a: Tensor, b: Tensor) -> Iterator[tuple[slice, Float[Tensor, "c o i"]]]:
        for start in range(0, len(a), self._chunk):
            rows = slice(start, start + self._chunk)
            yield rows, form(a[rows], b[rows])


def form(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> Float[Tensor, "n o i"]:
    """G_n = Σ_t b_t a_tᵀ."""
    return torch.bmm(b.transpose(1, 2), a)


def gram_squared_norms(
    a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """(Σ_ts (a_t·a_s)(b_t·b_s), its rounding bound u·(Σ_t ‖a_t‖‖b_t‖)²)."""
    inputs, outputs = torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2))
    squared = (inputs * outputs).sum((1, 2)).double()
    lengths = (inputs.diagonal(dim1=1, dim2=2) * outputs.diagonal(dim1=1, dim2=2)).clamp_min(0.0).sqrt()
    return squared, rounding(a, b) * lengths.sum(1).double().square()


def rounding(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> float:
    """u of the bound: a few ulps, growing like the square root of the longest inner product."""
    longest = max(a.shape[2], b.shape[2], a.shape[1])
    return float(torch.finfo(a.dtype).eps) * (4.0 + math.sqrt(longest))
