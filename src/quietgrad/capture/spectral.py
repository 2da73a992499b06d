"""Spectral norms divide a weight by an estimate of its largest singular value, which training improves at each call."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm


def is_spectral(module: nn.Module) -> bool:
    """Whether a module makes such an estimate."""
    hooks = module._forward_pre_hooks.values()
    return isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks)
