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


class GroupNormAdapter(Adapter):
    """∂γ_c = Σ_space b·x̂ and ∂β_c = Σ_space b, for every sample from one native backward.

    The samples become channels of one sample (n·C channels in n·G groups), so that torch's own kernel, which sums over
    the batch, has a batch of one.
    """

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return 1

    def pieces(
        self, call: Call, layouts: list[Layout | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.GroupNorm)
        b = backprops[0]
        n, m, channels = b.shape[:3]
        x = inputs_for(_input(call), layouts[0], n).to(b.dtype).reshape(n * m, channels, -1)
        rows, space = n * m, x.shape[2]
        _, mean, scale = torch.native_group_norm(
            x, None, None, rows, channels, space, module.num_groups, module.eps
        )
        _, gamma, beta = torch.ops.aten.native_group_norm_backward(
            b.reshape(1, rows * channels, space),
            x.reshape(1, rows * channels, space),
            mean.reshape(1, -1),
            scale.reshape(1, -1),
            x.new_ones(rows * channels),
            1,
            rows * channels,
            space,
            rows * module.num_groups,
            [False, True, True],
        )
        found = {"weight": gamma, "bias": beta}
        return {name: DenseGrad(found[name].view(n, m, channels).sum(1)) for name in call.unit.names}
