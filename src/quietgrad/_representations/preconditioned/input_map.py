"""The scaling of a layer's inputs, P = (A/ā + d·I)^(-p), of low rank beside a multiple of the identity.

A few directions hold most of the energy of a layer's inputs, and damping makes the others nearly alike. So P is
s·I + U·diag(D)·Uᵀ with r columns U: mapping a row takes 2·r products a coordinate instead of i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.row_arithmetic import each_times, lifted_rows
from quietgrad._kernels.transfer import upload

ALIKE = 1.2
"""Directions whose damped eigenvalue is less than this many times that of the rest belong to the rest."""
MOST = 16
"""Directions at most, as many as the kernels for thin products take: the first few hold most of what is to scale."""
ITERATIONS, MORE = 8, 8
"""Subspace iterations, and vectors beyond those that are kept."""


@dataclass(frozen=True)
class InputMap:
    """P = s·I + U·diag(D)·Uᵀ on inputs; with a bias the last input is 1, and its row of U stands apart.

    Args:
        base: s.
        directions: U of the inputs alone.
        unit: the row of U that belongs to the 1; None without a bias.
        gains: D.
        skew: ‖[U, unit]ᵀ[U, unit] − I‖ (Frobenius), how far rounding took the directions from orthonormal.
    """

    base: float
    directions: Float[Tensor, "i r"]
    unit: Float[Tensor, " r"] | None
    gains: Float[Tensor, " r"]
    skew: float

    @property
    def size(self) -> int:
        """Inputs, the 1 of a bias among them."""
        return len(self.directions) + (self.unit is not None)

    @property
    def condition(self) -> float:
        """The largest over the smallest scale."""
        scales = [self.base, *(self.base + self.gains).tolist()]
        return float(max(scales) / min(scales))

    @cached_property
    def _lifted(self) -> Float[Tensor, "r i"]:
        """Uᵀ as the kernel reads it: once for a step, or for many."""
        return self.directions.T.contiguous()

    def times(self, factor: float) -> InputMap:
        """factor·P."""
        return InputMap(factor * self.base, self.directions, self.unit, factor * self.gains, self.skew)

    def to(self, device: torch.device) -> InputMap:
        """The same map on a device; the host does not wait."""
        unit = None if self.unit is None else upload(self.unit, device)
        return InputMap(
            self.base, upload(self.directions, device), unit, upload(self.gains, device), self.skew
        )

    def squared_norm(self) -> float:
        """‖P‖² (Frobenius): what it makes of one row of noise."""
        return self.base**2 * (self.size - len(self.gains)) + float((self.base + self.gains).square().sum())

    def map(
        self, rows: Float[Tensor, "n x i"], last: Float[Tensor, "n x 1"] | float
    ) -> tuple[Float[Tensor, "n x i"], Float[Tensor, "n x 1"] | None]:
        """[rows, last]·P, as what becomes of rows and of last; sample by sample, so no rounding depends on others.

        Args:
            last: the coordinate of the bias; 1 for inputs of a layer. Not read without a bias.
        """
        directions, gains = self.directions.to(rows), self.gains.to(rows)
        along = each_times(rows, directions)
        if self.unit is not None:
            along += (
                self.unit.to(rows) if isinstance(last, float) and last == 1.0 else last * self.unit.to(rows)
            )
        along *= gains
        mapped = lifted_rows(rows, along, self._lifted.to(rows), self.base)
        if self.unit is None:
            return mapped, None
        # Few terms a row, each row added up by itself.
        return mapped, (along * self.unit.to(rows)).sum(2, keepdim=True).add_(self.base * last)


def input_map(
    moment: Float64[Tensor, "i i"],
    *,
    power: float,
    damping: float,
    with_bias: bool,
    like: Tensor,
) -> tuple[InputMap, tuple[float, float]]:
    """Make P from the second moment of inputs.

    Returns:
        P, and the largest over the mean eigenvalue before and after it.

    Args:
        with_bias: whether the last input is the 1 of a bias.
        like: a tensor of the precision and device that are wanted.
    """
    size = len(moment)
    mean = float(moment.trace()) / size
    values, vectors = _largest(moment / mean if mean > 0 else moment, MOST)
    total = float(size if mean > 0 else 0)
    kept = _worth_keeping(values, total, size, damping)
    values, vectors = values[:kept], vectors[:, :kept]
    rest = max(total - float(values.sum()), 0.0) / max(1, size - kept)
    base = (rest + damping) ** -power
    gains = (values + damping) ** -power - base
    after = torch.cat([values * (base + gains).square(), values.new_tensor([rest * base**2])])
    mean_after = (float(after[:-1].sum()) + (size - kept) * rest * base**2) / size
    spread = (float(values[:1].sum()) or 1.0, float(after.max()) / mean_after if mean_after > 0 else 1.0)
    vectors = vectors.to(like)
    skew = vectors.double().T @ vectors.double() - torch.eye(kept, dtype=torch.float64, device=vectors.device)
    unit = vectors[-1].contiguous() if with_bias else None
    directions = (vectors[:-1] if with_bias else vectors).contiguous()
    return InputMap(base, directions, unit, gains.to(like), float(skew.norm())), spread


def _worth_keeping(values: Float64[Tensor, " k"], total: float, size: int, damping: float) -> int:
    """How many of the largest eigenvalues differ from the mean of those that follow them."""
    kept = 0
    left = total
    for value in values.tolist():
        left -= value
        rest = max(left, 0.0) / max(1, size - kept - 1)
        if value + damping < ALIKE * (rest + damping):
            break
        kept += 1
    return min(kept, size - 1)


def _largest(
    moment: Float64[Tensor, "i i"], count: int
) -> tuple[Float64[Tensor, " k"], Float64[Tensor, "i k"]]:
    """The largest eigenvalues in descending order, with their vectors; by subspace iteration where that is cheaper."""
    size, wanted = len(moment), min(count, len(moment))
    if size <= 4 * (count + MORE):
        values, vectors = torch.linalg.eigh(moment)
    else:
        # Any start serves: it only has to be the same on every rank.
        start = torch.randn(
            size, count + MORE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        basis = start.to(moment.device)
        for _ in range(ITERATIONS):
            basis = torch.linalg.qr(moment @ basis).Q
        values, turned = torch.linalg.eigh(basis.T @ moment @ basis)
        vectors = basis @ turned
    return values.flip(0)[:wanted].clamp_min(0.0), vectors.flip(1)[:, :wanted]


def output_root(moment: Float64[Tensor, "o o"], power: float, damping: float) -> Float64[Tensor, "o o"]:
    """(G/ḡ + d·I)^(-p), of the second moment of output gradients."""
    mean = moment.trace() / len(moment)
    values, vectors = torch.linalg.eigh(moment / mean if mean > 0 else moment)
    root: Tensor = (vectors * (values.clamp_min(0.0) + damping) ** -power) @ vectors.T
    return root
