"""Normalisations with a scale and a shift: y = x̂·γ + β, where x̂ depends on the sample alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn.modules.instancenorm import _InstanceNorm

from quietgrad._capture.adapter import Adapter, Pieces, inputs_for
from quietgrad._capture.call import Call
from quietgrad._capture.layout import Placement
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._kernels.registry import operation


def saved_statistics(result: Any, node: str) -> list[Tensor]:
    """Mean and inverse deviation, which torch has computed already. Asking for them under hooks on saved tensors
    (checkpointing) would run the whole forward again."""
    if result.grad_fn.name() != node or _top_saved_tensors_default_hooks(True) is not None:
        return []
    return [result.grad_fn._saved_result1, result.grad_fn._saved_result2]


class LayerNormAdapter(Adapter):
    """LayerNorm and RMSNorm: ∂γ = Σ_t b_t ∘ x̂_t and ∂β = Σ_t b_t over the leading dimensions."""

    def extras(self, result: Any) -> list[Tensor]:
        return saved_statistics(result, "NativeLayerNormBackward0")

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        return len(shape) - len(module.normalized_shape)

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        b = backprops[0].reshape(len(backprops[0]), -1, *module.normalized_shape)
        found = _from_statistics(call, layouts[0], b)
        if found is not None:
            return {name: DenseGrad(found[name]) for name in call.unit.names}
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            x = inputs_for(_normal(module, call.input), layouts[0], b).reshape(b.shape)
            pieces["weight"] = DenseGrad((b * x).sum(1))
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(b.sum(1))
        return pieces


def _from_statistics(
    call: Call, layout: Placement | None, b: Float[Tensor, "n t ..."]
) -> dict[str, Tensor] | None:
    """Compute both gradients where torch has left its statistics, in the input's precision."""
    x = call.input
    if layout is None or not call.extras or call.extras[0].dtype != x.dtype:
        return None
    n, t = b.shape[:2]
    x, *statistics = (layout.samples_first(part, n) for part in (x, *call.extras))
    d = b.shape[2:].numel()  # -1 would be ambiguous for sequences of length 0
    found = norm_gradients(x.reshape(n, t, d), b.reshape(n, t, d), *(s.reshape(n, t) for s in statistics))
    return {name: part.reshape(n, *b.shape[2:]) for name, part in zip(("weight", "bias"), found, strict=True)}


@operation()
def norm_gradients(
    x: Float[Tensor, "n t d"],
    b: Float[Tensor, "n t d"],
    mean: Float[Tensor, "n t"],
    scale: Float[Tensor, "n t"],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Compute ∂γ = Σ_t b_t ∘ (x_t − mean_t)·scale_t and ∂β = Σ_t b_t.

    Checked by: tests/kernels/test_norm_rows.py
    """
    normal = torch.addcmul((-mean * scale)[:, :, None], x, scale[:, :, None])
    return (b * normal).sum(1), b.sum(1)


def _normal(module: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
    """Compute x̂ again, where its statistics are missing or rounded otherwise."""
    shape = list(module.normalized_shape)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, shape, None, module.eps)
    return F.layer_norm(x, shape, None, None, module.eps)


class GroupNormAdapter(Adapter):
    """GroupNorm, and InstanceNorm as one group per channel.

    ∂γ_c = Σ_space b·x̂ and ∂β_c = Σ_space b, for every sample from one native backward: the
    samples become channels of one sample (n·C channels in n·G groups), so that torch's own kernel, which sums over
    the batch, has a batch of one.
    """

    def extras(self, result: Any) -> list[Tensor]:
        return saved_statistics(result, "NativeGroupNormBackward0")

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        return 1 if isinstance(module, nn.GroupNorm) or len(shape) == batched_rank(module) else 0

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module = call.unit.module
        assert isinstance(module, nn.GroupNorm | _InstanceNorm)
        b = backprops[0]
        if isinstance(module, _InstanceNorm) and b.dim() == batched_rank(module):
            b = b.unsqueeze(1)  # an input without a batch, shared by all samples
        n, m, channels = b.shape[:3]
        # The kernel takes one dtype for all, the statistics of half-precision inputs are float32, and of a batch of
        # one it reads strided tensors as if they were not.
        wide = torch.promote_types(b.dtype, torch.float32)
        x = inputs_for(call.input, layouts[0], b).to(wide).reshape(n * m, channels, -1).contiguous()
        rows, space = n * m, x.shape[2]
        groups = module.num_groups if isinstance(module, nn.GroupNorm) else channels
        mean, scale = (
            (inputs_for(extra, layouts[0], b).to(wide) for extra in call.extras)
            if call.extras
            else (torch.native_group_norm(x, None, None, rows, channels, space, groups, module.eps)[1:])
        )
        _, gamma, beta = torch.ops.aten.native_group_norm_backward(
            b.to(wide).reshape(1, rows * channels, space).contiguous(),
            x.view(1, rows * channels, space),
            mean.reshape(1, -1).contiguous(),
            scale.reshape(1, -1).contiguous(),
            x.new_ones(rows * channels),
            1,
            rows * channels,
            space,
            rows * groups,
            [False, True, True],
        )
        found = {"weight": gamma, "bias": beta}
        return {name: DenseGrad(found[name].view(n, m, channels).sum(1)) for name in call.unit.names}


def batched_rank(module: nn.Module) -> int:
    """Dimensions of an InstanceNorm's input with a batch."""
    ranks = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
    return next(rank for kind, rank in ranks.items() if isinstance(module, kind))
