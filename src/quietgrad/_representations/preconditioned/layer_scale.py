"""The scaling of one layer's matrix and bias: what it does to each kind of per-sample gradient, and to a release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import KEPT, ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.kept_kernels import KeptKernels
from quietgrad._gradients.row_arithmetic import each_times
from quietgrad._kernels.transfer import upload
from quietgrad._representations.preconditioned.input_map import InputMap
from quietgrad._representations.preconditioned.scaled_rows import LARGEST, ScaledRows


class LayerScale(ABC):
    """A symmetric positive scaling of a matrix, and of its bias where it has one."""

    spread: tuple[float | Tensor, float | Tensor]
    """The largest over the mean eigenvalue of the inputs' second moment, before and after scaling."""

    with_bias: bool = False
    """Whether the layer's bias is scaled along."""

    @abstractmethod
    def times(self, factor: float) -> LayerScale:
        """The same scaling, longer or shorter."""

    @abstractmethod
    def noise_energy(self, shape: torch.Size) -> float | Tensor:
        """The squared length that noise of one unit a coordinate has after scaling, in expectation."""

    @abstractmethod
    def encode(self, block: BlockGrads, bias: BlockGrads | None) -> tuple[BlockGrads, BlockGrads | None]:
        """Scale every sample's gradient; one that is not scaled comes back as it is."""

    @abstractmethod
    def apply(self, block: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scale one matrix, and its bias if the layer's is scaled."""

    @abstractmethod
    def to(self, device: torch.device) -> LayerScale:
        """The same scaling on a device; the host does not wait."""

    @abstractmethod
    def for_rows(self, rows: slice) -> LayerScale:
        """The scaling of these rows of a release, without the others.

        Raises:
            ValueError: it mixes rows.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain data, which `restore` reads."""


def restore(saved: dict[str, Any]) -> LayerScale:
    """The scaling that `state` saved."""
    before, after = saved["spread"]
    if "rows" in saved:
        return TableScale(saved["rows"], (before, after))
    inputs = InputMap(saved["base"], saved["directions"], saved["unit"], saved["gains"], saved["skew"])
    return MatrixScale(inputs, saved["outputs"], saved["swapped"], (before, after))


@dataclass(frozen=True)
class TableScale(LayerScale):
    """Each row of a table, or each coordinate, times its own number.

    Args:
        rows: the numbers.
    """

    rows: Float[Tensor, " v"]
    spread: tuple[float | Tensor, float | Tensor] = (1.0, 1.0)

    def times(self, factor: float) -> TableScale:
        return TableScale(factor * self.rows, self.spread)

    def noise_energy(self, shape: torch.Size) -> Tensor:
        energy: Tensor = self.rows.double().square().sum() * shape[1:].numel()
        return energy

    def encode(self, block: BlockGrads, bias: BlockGrads | None) -> tuple[BlockGrads, BlockGrads | None]:
        return block.scale(left=self.rows), bias

    def apply(self, block: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.rows.to(block).view(-1, *[1] * (block.dim() - 1)) * block, bias

    def to(self, device: torch.device) -> TableScale:
        return TableScale(upload(self.rows, device), self.spread)

    def for_rows(self, rows: slice) -> TableScale:
        return TableScale(self.rows[rows], self.spread)

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows, "spread": list(self.spread)}


@dataclass(frozen=True)
class MatrixScale(LayerScale):
    """outputs · G · inputs of a matrix `[o, i]`; with a bias, of `[o, i + 1]` whose last column is the bias.

    Args:
        inputs: P of the input side.
        outputs: the output side, symmetric; None is the identity.
        swapped: whether inputs are on the left, as in GPT-2's layers `[i, o]`.
    """

    inputs: InputMap
    outputs: Float[Tensor, "o o"] | None = None
    swapped: bool = False
    spread: tuple[float, float] = (1.0, 1.0)

    @property
    def with_bias(self) -> bool:  # type: ignore[override]  # read-only here
        return self.inputs.unit is not None

    def times(self, factor: float) -> MatrixScale:
        return MatrixScale(self.inputs.times(factor), self.outputs, self.swapped, self.spread)

    def noise_energy(self, shape: torch.Size) -> float:
        width = shape[1:].numel() if self.swapped else shape[0]
        outputs = float(width) if self.outputs is None else float(self.outputs.double().square().sum())
        return self.inputs.squared_norm() * outputs

    # ---- per-sample gradients -------------------------------------------------------------------------------

    def encode(self, block: BlockGrads, bias: BlockGrads | None) -> tuple[BlockGrads, BlockGrads | None]:
        return encode_matrix(as_matrix(block), bias, self)

    def _encode_kept(
        self, block: KeptKernels, bias: BlockGrads | None
    ) -> tuple[BlockGrads, BlockGrads | None]:
        """Kernels that are formed already stay as they are; only thin products are made of them."""
        rows, order, p = block.matrices, block.order(), self.inputs
        directions = torch.empty_like(p.directions)
        directions[order[: len(directions)]] = p.directions
        along = each_times(rows, directions)
        thin = along
        if p.unit is not None and bias is not None:
            offset = bias.dense()
            thin = along + offset[:, :, None] * p.unit
        thin = thin * p.gains
        beside = None if p.unit is None else (thin * p.unit).sum(2)
        scaled = ScaledRows(
            rows,
            block.squared_norms(),
            p.base,
            thin=thin,
            along=along,
            directions=directions,
            beside=beside,
            skew=p.skew,
            order=order,
            shape=block.shape,
        )
        if beside is None or bias is None:
            return scaled, bias
        return scaled, DenseGrad(p.base * offset + beside)

    def _encode_factors(
        self, block: FactoredGrad, bias: BlockGrads | None
    ) -> tuple[BlockGrads, BlockGrads | None]:
        """Map [a, 1]: i of its columns are the weight's, the last one says how much of b_t the bias gets."""
        a, b = (block.b, block.a) if self.swapped else (block.a, block.b)
        a, shares = self.inputs.map(a, 1.0)
        b = b if self.outputs is None else DenseGrad(b).scale(right=self.outputs).rows
        weight = FactoredGrad(*((b, a) if self.swapped else (a, b)), block.shape, algorithm=block.algorithm)
        if shares is None:
            return weight, bias
        single = b.shape[1] == 1
        return weight, DenseGrad((shares * b if single else torch.bmm(shares.transpose(1, 2), b))[:, 0])

    def _encode_rows(
        self, block: BlockGrads, bias: BlockGrads | None
    ) -> tuple[BlockGrads, BlockGrads | None]:
        rows = block.dense().flatten(2)
        mapped, last = self._scale(rows, bias.dense() if self.with_bias and bias is not None else None)
        return DenseGrad(mapped.reshape(-1, *block.shape)), bias if last is None else DenseGrad(last)

    # ---- a release ------------------------------------------------------------------------------------------

    def to(self, device: torch.device) -> MatrixScale:
        outputs = None if self.outputs is None else upload(self.outputs, device)
        return MatrixScale(self.inputs.to(device), outputs, self.swapped, self.spread)

    def for_rows(self, rows: slice) -> MatrixScale:
        if self.swapped or self.outputs is not None:
            raise ValueError(
                "Preconditioning of a sharded model scales the inputs of layers whose weight is [outputs, inputs]. "
                'Leave sides="both" out, and replace transposed layers (GPT-2\'s Conv1D) by nn.Linear.'
            )
        return self

    def apply(self, block: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if len(block) == 0:  # a rank of a sharded model that holds no row
            return block, bias
        rows = block.reshape(1, len(block), -1)
        mapped, last = self._scale(rows, bias[None] if self.with_bias and bias is not None else None)
        return mapped.reshape(block.shape), bias if last is None else last[0]

    def _scale(
        self, rows: Float[Tensor, "n o i"], bias: Float[Tensor, "n o"] | None
    ) -> tuple[Float[Tensor, "n o i"], Float[Tensor, "n o"] | None]:
        rows = rows.transpose(1, 2) if self.swapped else rows
        mapped, last = self.inputs.map(rows, 0.0 if bias is None else bias[:, :, None])
        if self.outputs is not None:
            mapped = DenseGrad(mapped).scale(left=self.outputs).rows
            last = None if last is None else DenseGrad(last).scale(left=self.outputs).rows
        mapped = mapped.transpose(1, 2) if self.swapped else mapped
        return mapped, None if last is None else last[:, :, 0]

    def state(self) -> dict[str, Any]:
        return {
            "base": self.inputs.base,
            "directions": self.inputs.directions,
            "unit": self.inputs.unit,
            "gains": self.inputs.gains,
            "skew": self.inputs.skew,
            "outputs": self.outputs,
            "swapped": self.swapped,
            "spread": list(self.spread),
        }


@singledispatch
def as_matrix(block: BlockGrads) -> BlockGrads:
    """Return the block in the form in which it is scaled: convolutions as factors, or as kept kernels."""
    return block


@as_matrix.register(ConvGrad)
def _(block: ConvGrad) -> BlockGrads:
    if block.algorithm in KEPT:
        return block.drop_factors()
    return block.as_factored() if block.window.groups == 1 else block


@singledispatch
def encode_matrix(
    block: BlockGrads, bias: BlockGrads | None, scale: MatrixScale
) -> tuple[BlockGrads, BlockGrads | None]:
    """Scale a block and its bias; formed rows, where nothing cheaper is registered for its kind."""
    return scale._encode_rows(block, bias)


@encode_matrix.register(FactoredGrad)
def _(
    block: FactoredGrad, bias: BlockGrads | None, scale: MatrixScale
) -> tuple[BlockGrads, BlockGrads | None]:
    return scale._encode_factors(block, bias)


@encode_matrix.register(KeptKernels)
def _(
    block: KeptKernels, bias: BlockGrads | None, scale: MatrixScale
) -> tuple[BlockGrads, BlockGrads | None]:
    if scale.outputs is None and scale.inputs.condition <= LARGEST:
        return scale._encode_kept(block, bias)
    return scale._encode_rows(block, bias)
