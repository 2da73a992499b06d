"""Convolutions of one, two or three dimensions, with every stride, dilation, group and padding mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._capture.adapter import Adapter, Pieces, inputs_for
from quietgrad._capture.call import Call
from quietgrad._capture.layout import Placement
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._kernels.patches import Window

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


class ConvAdapter(Adapter):
    """The kernel's gradient correlates inputs with output gradients; the bias's sums them over space."""

    def sample_dims(self, module: nn.Module, shape: torch.Size) -> int:
        assert isinstance(module, Conv)
        return 1 if len(shape) == 2 + len(module.stride) else 0

    def pieces(
        self, call: Call, layouts: list[Placement | None], backprops: list[Float[Tensor, "n ..."]]
    ) -> Pieces:
        module, b = call.unit.module, backprops[0]
        assert isinstance(module, Conv)
        dims = len(module.stride)
        if b.dim() == dims + 2:
            b = b.unsqueeze(1)
        pieces: Pieces = {}
        if "weight" in call.unit.names:
            x, padding = pad_input(module, call.input)
            inputs = inputs_for(x, layouts[0], b).to(b.dtype)
            inputs = inputs.unsqueeze(1) if inputs.dim() == dims + 2 else inputs
            window = Window(module.weight.shape, module.stride, padding, module.dilation, module.groups)
            pieces["weight"] = ConvGrad(inputs, b, window)
        if "bias" in call.unit.names:
            pieces["bias"] = DenseGrad(b.flatten(3).sum((1, 3)))
        return pieces


def pad_input(module: Conv, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input as the kernel sees it, and the symmetric zero padding that is left to do."""
    symmetric = not isinstance(module.padding, str)
    if module.padding_mode == "zeros" and symmetric:
        return x, tuple(int(side) for side in module.padding)
    # Reflected, circular and one-sided padding is done once, ahead of everything. The kernels then only know zeros on
    # both sides.
    pads = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    batched = x if x.dim() == 2 + len(module.stride) else x.unsqueeze(0)
    wide = F.pad(batched, pads, mode=mode)
    return wide if batched is x else wide.squeeze(0), (0,) * len(module.stride)
