"""Normalisations with a scale and a shift: y = x̂·γ + β, where x̂ depends on the sample alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.capture.adapter import Adapter, Pieces, inputs_for
from quietgrad.capture.call import Call
from quietgrad.capture.layout import Layout
from quietgrad.gradients.dense import DenseGrad


def _input(call: Call) -> Tensor:
    x = call.args[0] if call.args else call.kwargs["input"]
    assert isinstance(x, Tensor)
    return x


class LayerNormAdapter(Adapter):
    """∂γ = Σ_t b_t ∘ x̂_t and ∂β = Σ_t b_t over the leading dimensions."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        assert isinstance(module, nn.LayerNorm)
        return len(shape) - len(module.normalized_shape)

    def pieces(
        self, call: Call, layouts: list[Layout | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.LayerNorm)
        shape = module.normalized_shape
        b = backprops[0].reshape(len(backprops[0]), -1, *shape)
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            normal = F.layer_norm(_input(call), shape, None, None, module.eps)
            x = inputs_for(normal, layouts[0], len(b)).reshape(b.shape)
            pieces["weight"] = DenseGrad((b * x).sum(1))
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(b.sum(1))
        return pieces


class ChannelNormAdapter(Adapter):
    """The same per channel: GroupNorm and InstanceNorm, whose samples lie along the first dimension."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return 1

    def pieces(
        self, call: Call, layouts: list[Layout | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.GroupNorm)
        b = backprops[0].flatten(3) if backprops[0].dim() > 3 else backprops[0].unsqueeze(3)
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            normal = F.group_norm(_input(call), module.num_groups, None, None, module.eps)
            x = inputs_for(normal, layouts[0], len(b)).reshape(b.shape)
            pieces["weight"] = DenseGrad((b * x).sum((1, 3)))
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(b.sum((1, 3)))
        return pieces
