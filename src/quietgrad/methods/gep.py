"""GEP: gradient embedding perturbation (Yu, Zhang, Chen, Liu, ICLR 2021), and its biased form B-GEP.

    B (k×p, orthonormal rows): principal directions of public gradients, labels may be random
    w̃ = Σ_i clip_S1(B g_i) + noise,    r̃ = Σ_i clip_S2(g_i − BᵀB g_i) + noise
    g̃ = (Bᵀw̃ + (I − BᵀB) r̃) / qN

B-GEP keeps w̃ only. Two things differ from the paper at no cost: the residual's noise along B is projected away, and
the accountant sees one Gaussian of multiplier σ (the authors' code doubles the RDP of one release instead).

Defaults: the paper's clips (S₁ = 10, S₂ = 2) collapse at small ε. With S₂ ≤ S₁/√2 the residual's noise stays below
that of DP-SGD clipped at S₁ for every σ, p and batch, so that GEP degrades towards DP-SGD; S₁ = 1, S₂ = ½ and the
paper's equal split did best in docs/results/methods.md. B-GEP pays off only if public gradients span the private ones.

Formal guarantee: two releases of one batch with shares f₁ + f₂ = 1, sensitivities S₁ and S₂ (residual.py says why in
floating point too) and noise σ/√f_j·S_j: together a Poisson-subsampled Gaussian mechanism of multiplier σ. B depends
on public data, public randomness and past releases only.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

import math

from quietgrad._mechanism.clipping import FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.base import PublicLosses
from quietgrad._representations.subspace.joint import JointSubspace
from quietgrad._representations.subspace.partition import ParameterGroups
from quietgrad._representations.subspace.residual import Residual
from quietgrad._representations.subspace.subspace import Rule as Basis
from quietgrad._representations.subspace.subspace import Subspace
from quietgrad.schedules import Schedule


def gep(
    public_losses: PublicLosses | None = None,
    *,
    rank: int,
    clip: float | Schedule = 1.0,
    residual_clip: float | Schedule = 0.5,
    split: str | float = "paper",
    parameters: int | None = None,
    joint: bool = False,
    groups: ParameterGroups = 1,
    refresh_every: int = 1,
    power_iterations: int = 1,
    basis: Basis = "power",
) -> Mechanism:
    """Release a low-dimensional embedding and, separately, the small residual that it misses.

    Args:
        public_losses: `model -> losses[m]` on public data (`qg.public_losses` makes them), m >= rank a group.
        rank: k, basis vectors over all groups.
        clip: S₁, of the embeddings.
        residual_clip: S₂, of the residuals.
        split: the embedding's share of the budget: "paper" (one half), "energy" (least total noise) or a number.
        parameters: p, how many parameters are trained; "energy" needs it.
        joint: clip embedding and residual together, (f₁/S₁²)‖w‖² + (f₂/S₂²)‖r‖² ≤ 1, under the same noise.
        groups: parameter groups with a basis each: a number of equal parts, "modules", or your own.
        refresh_every: steps between two bases.
        power_iterations: t.
        basis: "power" iteration on public gradients, their "eigenvectors", or "random" directions, which need no
            public data and miss most of the gradient (the paper's figure 7).
    """
    subspace = Subspace(
        public_losses=public_losses,
        rank=rank,
        groups=groups,
        refresh_every=refresh_every,
        power_iterations=power_iterations,
        rule=basis,
    )
    share = _embedding_share(split, rank, parameters, clip, residual_clip)
    if joint:
        return Mechanism(name="gep", releases=(_joint_release(subspace, share, clip, residual_clip),))
    embedding = Release(representation=subspace, clip=FlatClip(clip), share=share)
    residual = Residual(subspace=subspace, bound=residual_clip)
    return Mechanism(
        name="gep",
        releases=(embedding, Release(representation=residual, clip=FlatClip(residual_clip), share=1 - share)),
    )


def biased_gep(
    public_losses: PublicLosses | None = None,
    *,
    rank: int,
    clip: float | Schedule = 1.0,
    groups: ParameterGroups = 1,
    refresh_every: int = 1,
    power_iterations: int = 1,
    basis: Basis = "power",
) -> Mechanism:
    """GEP without the residual: less noise, and a systematic error that no budget removes.

    Args:
        public_losses, rank, clip, groups, refresh_every, power_iterations, basis: as in `gep`.
    """
    subspace = Subspace(
        public_losses=public_losses,
        rank=rank,
        groups=groups,
        refresh_every=refresh_every,
        power_iterations=power_iterations,
        rule=basis,
    )
    return Mechanism(name="biased_gep", releases=(Release(representation=subspace, clip=FlatClip(clip)),))


def energy_split(rank: int, parameters: int, clip: float, residual_clip: float) -> float:
    """f₁ = √a/(√a + √b) with a = kS₁², b = pS₂²: the embedding's share that minimises the total noise a/f₁ + b/f₂."""
    embedding, residual = clip * math.sqrt(rank), residual_clip * math.sqrt(parameters)
    return embedding / (embedding + residual)


def _embedding_share(
    split: str | float,
    rank: int,
    parameters: int | None,
    clip: float | Schedule,
    residual_clip: float | Schedule,
) -> float:
    if split == "paper":
        return 0.5
    if split == "energy":
        if parameters is None or isinstance(clip, Schedule) or isinstance(residual_clip, Schedule):
            raise ValueError(
                'split="energy" needs parameters=, the number of trained parameters, and clips that are numbers. '
                "Pass sum(p.numel() for p in model.parameters() if p.requires_grad), or a number for split."
            )
        return energy_split(rank, parameters, clip, residual_clip)
    if isinstance(split, str) or not 0 < split < 1:
        raise ValueError(f'Expected split "paper", "energy" or a number in (0, 1), got {split!r}.')
    return float(split)


def _joint_release(
    subspace: Subspace, share: float, clip: float | Schedule, residual_clip: float | Schedule
) -> Release:
    if isinstance(clip, Schedule) or isinstance(residual_clip, Schedule):
        raise ValueError("joint=True needs clips that are numbers, got a schedule.")
    scales = (clip / math.sqrt(share), residual_clip / math.sqrt(1 - share))
    return Release(representation=JointSubspace(subspace=subspace, scales=scales), clip=FlatClip(1.0))
