"""Swaps what cannot be trained privately for what can."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

MOST_GROUPS = 32


def fix(model: nn.Module) -> nn.Module:
    """Replace BatchNorm by GroupNorm, and let InstanceNorm forget its statistics.

    BatchNorm1d gets one group, which on tables `[n, c]` is LayerNorm: there, a group of one channel is one number, and
    normalised it is always zero. The scale and shift are kept. The model is changed in place and returned; a model
    that is itself a BatchNorm comes back as a new GroupNorm.

    Returns:
        the model.
    """
    swapped: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child not in swapped:
                swapped[child] = private_version(child)
            if swapped[child] is not child:
                setattr(parent, name, swapped[child])
    return private_version(model)


def private_version(module: nn.Module) -> nn.Module:
    """The module itself, or what stands in for it."""
    if isinstance(module, _BatchNorm):
        return _group_norm(module)
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
    return module


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    most = 1 if isinstance(norm, nn.BatchNorm1d) else MOST_GROUPS
    # GroupNorm needs a number of groups that divides the channels; the largest one of at most 32 is the usual choice.
    groups = max(g for g in range(1, most + 1) if norm.num_features % g == 0)
    like: Tensor = norm.weight if norm.affine else torch.empty(0)
    new = nn.GroupNorm(
        groups, norm.num_features, eps=norm.eps, affine=norm.affine, device=like.device, dtype=like.dtype
    )
    if norm.affine:
        new.load_state_dict({"weight": norm.weight, "bias": norm.bias})
        new.weight.requires_grad_(norm.weight.requires_grad)
        new.bias.requires_grad_(norm.bias.requires_grad)
    return new.train(norm.training)
