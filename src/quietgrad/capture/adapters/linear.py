"""Linear layers: y = x Wᵀ + b over any number of leading dimensions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.capture.adapters.base import Adapter, Pieces, inputs_for
from quietgrad.capture.call import Call
from quietgrad.capture.layout import Placement
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.factored import FactoredGrad


def summed(b: Float[Tensor, "n t o"]) -> Float[Tensor, "n o"]:
    """Σ_t b_t; of one position without a copy."""
    return b.squeeze(1) if b.shape[1] == 1 else b.sum(1)


class LinearAdapter(Adapter):
    """G = Σ_t b_t x_tᵀ for the weight, Σ_t b_t for the bias."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return len(shape) - 1

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        n = len(backprops[0])
        x = call.args[0] if call.args else call.kwargs["input"]
        b = backprops[0].reshape(n, -1, backprops[0].shape[-1])
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            a = inputs_for(x, layouts[0], b).reshape(n, -1, x.shape[-1])
            pieces["weight"] = FactoredGrad(a.to(b.dtype), b)
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(summed(b))
        return pieces


class TransposedLinearAdapter(Adapter):
    """y = x W + b with W `[i, o]`: GPT-2's `Conv1D`. Its factors are those of a linear layer, the roles swapped."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return len(shape) - 1

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        n, x = len(backprops[0]), call.args[0]
        b = backprops[0].reshape(n, -1, backprops[0].shape[-1])
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            a = inputs_for(x, layouts[0], b).reshape(n, -1, x.shape[-1]).to(b.dtype)
            pieces["weight"] = FactoredGrad(a=b, b=a)
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(summed(b))
        return pieces
