"""Linear layers: y = x Wᵀ + b over any number of leading dimensions."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from quietgrad._capture.adapter import Adapter, Pieces, inputs_for
from quietgrad._capture.call import Call
from quietgrad._capture.layout import Placement
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.factored import FactoredGrad


def outputs_of(backprop: Float[Tensor, "n ... o"]) -> Float[Tensor, "n t o"]:
    """All leading dimensions of a sample as positions."""
    return backprop.reshape(len(backprop), -1, backprop.shape[-1])


def inputs_of(x: Tensor, layout: Placement | None, b: Float[Tensor, "n t o"]) -> Float[Tensor, "n t i"]:
    """What the map was given at the positions of its output gradients, in their precision."""
    return inputs_for(x, layout, b).reshape(len(b), -1, x.shape[-1]).to(b.dtype)


def sum_positions(b: Float[Tensor, "n t o"]) -> Float[Tensor, "n o"]:
    """Σ_t b_t; of one position without a copy."""
    return b.squeeze(1) if b.shape[1] == 1 else b.sum(1)


class LinearAdapter(Adapter):
    """G = Σ_t b_t x_tᵀ for the weight, Σ_t b_t for the bias.

    Args:
        transposed: y = x W + b with W `[i, o]`, as GPT-2's `Conv1D` has it: the same factors with their roles swapped.
    """

    feature_dims = 1

    def __init__(self, *, transposed: bool = False) -> None:
        self._transposed = transposed

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        b = outputs_of(backprops[0])
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            a = inputs_of(call.input, layouts[0], b)
            pieces["weight"] = FactoredGrad(b, a) if self._transposed else FactoredGrad(a, b)
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(sum_positions(b))
        return pieces
