"""Private least squares: second moments released once, then steps that they precondition.

With rows at most one long and targets in [−1, 1],

    A = Σ_i x_i x_iᵀ/N + noise,   P = U (max(Λ, e) + e)⁻¹ Uᵀ,   w ← w + P·(Σ_i clip(x_i (t_i − ⟨w, x_i⟩))/N + noise)

with A = U Λ Uᵀ and e the largest eigenvalue that noise alone would have. The first step is the ridge estimate of
sufficient statistics with eigenvalues lifted to the noise. Later ones repair it: residuals are shorter than targets, so
a clip of a quarter takes little from them, and steps along directions that A knows have small noise. Four tables of the
development (docs/results/tables.md) had R² = 0.34 after one step at ε = ½ and 0.63 after 24.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._linear_probe.recipe import MICRO_BATCH, WIDEST
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.statistics import DiagonalMoments, SecondMoments
from quietgrad._sampling.batches import PoissonBatches
from quietgrad.accounting.ledger import Ledger
from quietgrad.features.moments import TINY, moments_from_second, noise_eigenvalue
from quietgrad.methods.dp_sgd import dp_sgd

CLIP = 0.25
"""Of residuals beside targets in [−1, 1]; an eighth was a little worse."""
STEPS = 20
"""24 and 40 were alike, 6 and 12 worse."""
MOMENTS_SHARE = 0.3
CONSTANT = 0.43
"""The last coordinate of a row, for the intercept; the others are shortened to keep it at most one long."""


def regression_program(width: int) -> Program:
    """Plan the second moments of rows, and the steps."""
    second = SecondMoments() if width <= WIDEST else DiagonalMoments()
    moments = {"moments": StatisticRelease(statistic=second, share=MOMENTS_SHARE)}
    return Program(training=dp_sgd(clip=CLIP), statistics=moments)


def with_intercept(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Append the constant to rows at most one long, which stay so."""
    constant = rows.new_full((rows.shape[0], 1), CONSTANT)  # `len` would fix the batch of an export
    return torch.cat([rows * math.sqrt(1 - CONSTANT**2), constant], 1)


def preconditioner(blocks: dict[str, Tensor], std: float) -> Float[Tensor, "d d"] | Float[Tensor, " d"]:
    """P, from released second moments; its diagonal alone, from theirs. Post-processing."""
    if "diagonal" in blocks:
        return 1 / (blocks["diagonal"].clamp_min(max(std, TINY)) + max(std, TINY))
    second = blocks["second"]
    found = moments_from_second(second.new_zeros(len(second)), second, std)
    edge = noise_eigenvalue(std, len(second))
    return found.directions / (found.variances + max(edge, TINY)) @ found.directions.T


def preconditioned(grad: Float[Tensor, "1 d"], precondition: Tensor) -> Float[Tensor, "1 d"]:
    """P·gradient, for a matrix or a diagonal; 10,000 columns have no matrix that anybody would multiply."""
    return grad * precondition if precondition.dim() == 1 else grad @ precondition


def train_regression(
    head: nn.Linear, program: Program, batches: PoissonBatches, precondition: Tensor, ledger: Ledger
) -> Privatizer:
    """Take the steps, on all records each; the Privatizer has the cost.

    Batches hold rows and targets, and perhaps a weight in [0, 1] for each record.
    """
    with Privatizer(head, program.training, batches, ledger=ledger) as private:
        for batch in batches:
            for x, target, *weights in batch.split(MICRO_BATCH):
                private.backward(_losses(head(x)[:, 0], target, *weights))
            private.release()
            assert head.weight.grad is not None
            with torch.no_grad():
                head.weight -= preconditioned(head.weight.grad, precondition)
    return private


def _losses(said: Float[Tensor, " n"], target: Tensor, weights: Tensor | None = None) -> Float[Tensor, " n"]:
    """Half of the squared error; with weights, a loss whose gradient is w·clip(error) as in `recipe`."""
    if weights is None:
        return (said - target).square() / 2
    with torch.no_grad():
        errors = (said - target).clamp(-CLIP, CLIP) * weights
    return said * errors
