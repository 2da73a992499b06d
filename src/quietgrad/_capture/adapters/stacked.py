"""Recurrent layers with dropout between them, written out layer by layer with the masks that were drawn."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Stacked(nn.Module):
    """Computes what a recurrent module computes, its dropout replaced by given masks.

    Args:
        module: the RNN, GRU or LSTM; its parameters are shared.
    """

    def __init__(self, module: nn.RNNBase) -> None:
        super().__init__()
        self._kind, self._like = module.mode.lower(), [module]  # in a list: the module is no child
        for name, parameter in module.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor, hx: Any, *masks: Tensor) -> tuple[Tensor, Any]:
        like = self._like[0]
        long = isinstance(hx, tuple)
        directions = 2 if like.bidirectional else 1
        ends: list[Any] = []
        for layer in range(like.num_layers):
            rows = slice(layer * directions, (layer + 1) * directions)
            state = tuple(part[rows] for part in hx) if long else hx[rows]
            x, *end = self._layer(x, state, layer)
            ends.append(end)
            # torch's kernel draws its masks inside and does not return them. Here they are arguments, so vmap can
            # give each sample its own.
            if layer < len(masks):
                x = x * masks[layer]
        joined = [torch.cat(parts) for parts in zip(*ends, strict=True)]
        return x, tuple(joined) if long else joined[0]

    def _layer(self, x: Tensor, state: Any, layer: int) -> tuple[Tensor, ...]:
        like = self._like[0]
        suffixes = [f"_l{layer}"] + ([f"_l{layer}_reverse"] if like.bidirectional else [])
        kinds = [name.removesuffix("_l0") for name in like._all_weights[0]]
        weights = [getattr(self, kind + suffix) for suffix in suffixes for kind in kinds]
        batched = x.unsqueeze(1) if x.dim() == 2 else x
        if x.dim() == 2:
            state = tuple(s.unsqueeze(1) for s in state) if isinstance(state, tuple) else state.unsqueeze(1)
        run = getattr(torch._VF, self._kind)
        first = like.batch_first and x.dim() == 3
        out, *end = run(batched, state, weights, like.bias, 1, 0.0, like.training, like.bidirectional, first)
        if x.dim() == 2:
            return out.squeeze(1), *[e.squeeze(1) for e in end]
        return out, *end


def masks(module: nn.RNNBase, x: Tensor) -> list[Float[Tensor, "..."]]:
    """The masks that the module draws for this input, from the random numbers as they are now."""
    time_first = x.transpose(0, 1) if module.batch_first and x.dim() == 3 else x
    width = (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    drawn = []
    # The generator is in the state that it had before the recorded call. Masks drawn in torch's order and shape are
    # therefore the same ones; the comparison of the outputs proves it.
    for _ in range(module.num_layers - 1):
        mask = F.dropout(time_first.new_ones(*time_first.shape[:-1], width), module.dropout, training=True)
        drawn.append(mask.transpose(0, 1) if time_first is not x else mask)
    return drawn
