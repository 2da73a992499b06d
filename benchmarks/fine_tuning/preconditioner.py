"""Precondition coordinates before the clip, by public energies: the same ε with less noise in all.

Few coordinates have most of a record's length, and so they set the noise of all. For two classes the gradient of the
difference of the logits, φ, needs no label, so public text shows how much each coordinate has, e_k = mean φ_k². With
a_k = c·e_k^(-q), a∘φ is clipped, noise is added there, and the sum is divided by a again. The noise in all is

    Σ_k noise_k² = σ²·Σ_j a_j²e_j·Σ_k a_k⁻²,   least at a_k² ∝ e_k^(-½), q = ¼.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.fine_tuning import reuse
from benchmarks.fine_tuning.activations import encoded
from benchmarks.fine_tuning.classifier import LAYERS, TOKENS, encoder
from benchmarks.fine_tuning.cores import public_ids
from quietgrad._sampling.batch import Batch

LEAST = 1e-4
"""Energy of a coordinate in units of the mean, from below: what hardly ever moves is not blown up."""


def preconditioner(phi: Float[Tensor, "n p"], power: float) -> Float[Tensor, " p"]:
    """a, with c such that the median length of these rows stays: a clip that fits them fits them still.

    Args:
        phi: of public sentences.
        power: q.
    """
    energy = phi.square().mean(0)
    scale: Tensor = energy.clamp_min(LEAST * float(energy.mean())) ** -power
    kept: Tensor = phi.norm(dim=1).median() / (phi * scale).norm(dim=1).median()
    return scale * kept


def public_phi(
    model: nn.Module, trained: reuse.Trained, name: str, public: Path, top: int
) -> Float[Tensor, "n p"]:
    """φ of the public sentences of `core`, under the released head and weights.

    Args:
        model: the upper layers and the head.
        trained: what of it trains.
        name: of the encoder.
        public: the folder of the packages.
        top: how many layers.
    """
    table = encoded(encoder(name), public_ids(public, TOKENS), LAYERS - top)
    rows = torch.arange(len(table.lengths))
    drawn = Batch(range(len(rows)), lambda some: [rows[list(some)], torch.zeros(len(some))])
    return reuse.lines(model, trained, table, drawn).phi
