"""Is a layer's gradient of low rank, and does its subspace stay? (RGP's section 4, figures 2 and 3; research mode.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._representations.low_rank.carriers import Carriers
from quietgrad._representations.low_rank.low_rank import LowRankCodec
from quietgrad._representations.low_rank.matrices import as_matrix, check_rank, choose_matrices


def stable_rank(matrix: Float[Tensor, "o i"]) -> float:
    """‖G‖_F² / ‖G‖₂²; 0 for the zero matrix."""
    top = float(torch.linalg.matrix_norm(matrix, ord=2)) ** 2
    return float(matrix.square().sum()) / top if top > 0 else 0.0


def principal_carriers(matrix: Float[Tensor, "o i"], rank: int) -> Carriers:
    """U_r and V_rᵀ of the r-SVD."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return Carriers(left[:, :rank], right[:rank])


def projection_residual(matrix: Float[Tensor, "o i"], carriers: Carriers) -> float:
    """‖(I − LLᵀ) G (I − RᵀR)‖_F / ‖G‖_F: what RGP loses of G (the paper's equations 5 and 6)."""
    rest = matrix - carriers.left @ (carriers.left.T @ matrix)
    rest = rest - (rest @ carriers.right.T) @ carriers.right
    norm = float(matrix.norm())
    return float(rest.norm()) / norm if norm > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class LowRankReport:
    """One matrix at one step.

    Args:
        stable_rank: of the batch gradient.
        self_residual: with the batch gradient's own principal directions (equation 6), the least possible.
        historical_residual: with those of the gradient at the last report (equation 5); None at the first.
        carrier_residual: with the carriers that the mechanism used; None if it has none.
    """

    step: int
    name: str
    stable_rank: float
    self_residual: float
    historical_residual: float | None
    carrier_residual: float | None


class LowRankObserver(qg.Observer):
    """Collects reports on the unclipped gradient of the whole batch.

    Args:
        rank: r of the residuals.
        every: steps between reports; the paper compares epochs.
        matrices: names, `*` matching anything; left out, the same choice as `rgp` makes.
    """

    def __init__(self, *, rank: int, every: int = 1, matrices: Sequence[str] | None = None) -> None:
        check_rank(rank)
        self._rank, self._every, self._matrices = rank, every, matrices
        self._gradients: Blocks = {}
        self._used: dict[str, Carriers] = {}
        self._last: dict[str, Carriers] = {}
        self.reports: list[LowRankReport] = []

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if public.step % self._every:
            return
        chosen = choose_matrices(public.parameters, self._rank, self._matrices)
        sums = grads.weighted_sum(torch.ones(grads.samples))
        for name in chosen:
            part = as_matrix(sums[name]).double()
            self._gradients[name] = self._gradients[name] + part if name in self._gradients else part
        codecs = [public.codec(release.representation) for release in mechanism.releases]
        self._used = {
            n: c for codec in codecs if isinstance(codec, LowRankCodec) for n, c in codec.carriers.items()
        }

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
        for name, gradient in self._gradients.items():
            own = principal_carriers(gradient, self._rank)
            self.reports.append(
                LowRankReport(
                    step=step,
                    name=name,
                    stable_rank=stable_rank(gradient),
                    self_residual=projection_residual(gradient, own),
                    historical_residual=_residual(gradient, self._last.get(name)),
                    carrier_residual=_residual(gradient, self._used.get(name)),
                )
            )
            self._last[name] = own
        self._gradients = {}


def _residual(gradient: Float[Tensor, "o i"], carriers: Carriers | None) -> float | None:
    if carriers is None:
        return None
    return projection_residual(gradient, Carriers(carriers.left.to(gradient), carriers.right.to(gradient)))
