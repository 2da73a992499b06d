"""A linear head in closed form from two statistics of all records: the ridge regression of ±1 on features.

    u_i = (x_i/‖x_i‖, 1)/√2,   b = Σ y_i u_i/N,   S = Σ u_i u_iᵀ/N,   w = (S + λI)⁻¹ b

Rows are of unit length, so each sum has sensitivity one. λ lies above the largest eigenvalue of the noise of S.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

import quietgrad as qg

LEAST = 1e-3
"""λ without noise."""
ABOVE = 1.5
"""λ beyond it, in units of the noise's largest eigenvalue, std·√(2d)."""


def statistics(labels: float, second: float) -> dict[str, qg.StatisticRelease]:
    """b and S with their shares of the squared budget."""
    return {
        "labels": qg.StatisticRelease(statistic=qg.Mean(), share=labels),
        "second": qg.StatisticRelease(statistic=qg.SecondMoments(), share=second),
    }


def private_head(
    head: nn.Linear, released: qg.Statistics, features: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> None:
    """Set a head of two classes to what the two releases tell."""
    rows = _rows(features)
    mean = released.release("labels", _signed(rows, labels)).blocks["mean"]
    second = released.release("second", rows)
    noise = second.std * math.sqrt(2 * rows.shape[1])
    _set(head, mean, second.blocks["second"], LEAST + ABOVE * noise)


def plain_head(head: nn.Linear, features: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> None:
    """The same without noise."""
    rows = _rows(features)
    _set(head, _signed(rows, labels).mean(0), rows.T @ rows / len(rows), LEAST)


def _rows(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d+1"]:
    return F.pad(F.normalize(features), (0, 1), value=1.0) / math.sqrt(2)


def _signed(rows: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, "n d"]:
    return rows * (2 * labels - 1)[:, None]


@torch.no_grad()
def _set(head: nn.Linear, mean: Float[Tensor, " d"], second: Float[Tensor, "d d"], ridge: float) -> None:
    """Logits ∓uᵀw: for small ones the logistic's log-odds of a regression on ±1."""
    matrix = (second + second.T).double() / 2 + ridge * torch.eye(len(mean), dtype=torch.float64)
    weights = torch.linalg.solve(matrix, mean.double()) / math.sqrt(2)
    head.weight.copy_(torch.stack([-weights[:-1], weights[:-1]]))
    head.bias.copy_(torch.stack([-weights[-1], weights[-1]]))
