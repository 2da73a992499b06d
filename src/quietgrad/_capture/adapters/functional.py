"""Calling a module with other tensors in place of its parameters, leaving it as it was."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def called_with(module: nn.Module, parameters: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
    """What the module returns with these parameters.

    Recurrent modules keep a list of their weights, which would go on holding the tensors of this call.
    """
    try:
        return functional_call(module, parameters, args, kwargs, tie_weights=False)
    finally:
        for part in module.modules():
            if isinstance(part, nn.RNNBase):
                part._init_flat_weights()
