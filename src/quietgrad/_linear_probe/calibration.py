"""Probabilities from the logits of a private head: undo the clip's bias, and average over the head's noise.

A head that balances clipped errors has, where classes truly have probabilities π and the softmax says p,

    Σ_k π_k c_k (p − e_k) = 0,   c_k = min(1, C/‖p − e_k‖)   ⟹   π_k ∝ p_k / c_k = p_k max(1, ‖p − e_k‖/C)

So the softmax of a head with a short clip is overconfident, by a known function. Its weights also hold noise of a known
size, the same in each logit of a row of unit length. Both corrections are functions of what was released: they cost
nothing. They keep the order of the classes (for ‖p − e_k‖² = 1 + ‖p‖² − 2 p_k: checked in the tests), so that the most
likely class is the same.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


def class_probabilities(logits: Float64[Tensor, "n k"], clip: float, noise: float) -> Float64[Tensor, "n k"]:
    """Return what the classes' shares are among records of such logits.

    Two classes: the average over the noise by quadrature. More: logits are shrunk as a probit's would be
    (MacKay 1992), which keeps their order.

    Args:
        clip: C.
        noise: standard deviation of the noise in a logit (`Settings.noise`).
    """
    if logits.shape[1] != 2:
        return unclipped((logits / math.sqrt(1 + math.pi * noise**2 / 4)).softmax(1), clip)
    nodes = torch.from_numpy(_NODES) * (math.sqrt(2.0) * noise)
    weights = torch.from_numpy(_WEIGHTS / _WEIGHTS.sum())
    odds = (logits[:, 1] - logits[:, 0])[:, None] + nodes
    both = torch.stack([torch.sigmoid(-odds), torch.sigmoid(odds)], -1)
    return (unclipped(both.flatten(0, 1), clip).view(both.shape) * weights[:, None]).sum(1)


def unclipped(shares: Float64[Tensor, "n k"], clip: float) -> Float64[Tensor, "n k"]:
    """π_k ∝ p_k max(1, ‖p − e_k‖/C)."""
    lengths = (1 + shares.square().sum(1, keepdim=True) - 2 * shares).clamp_min(0.0).sqrt()
    found = shares * (lengths / clip).clamp_min(1.0)
    return found / found.sum(1, keepdim=True)
