"""PDP-SGD (Zhou, Wu, Banerjee, ICLR 2021: Bypassing the ambient dimension) and its random baseline RPDP-SGD.

    g̃ = (Σ_i clip_C(g_i) + σC·z) / qN,    g̃ ← VVᵀg̃

V holds the top k eigenvectors of the second-moment matrix of m public gradients. Keeping 1 − s of the complement
(`strength` s < 1) goes beyond the paper: at larger ε the projection's error dominates and plain DP-SGD wins there.

Formal guarantee: one release of sensitivity C with noise σC, as in DP-SGD; the projection sees only that release,
public data and past releases, so it is post-processing. Clips are per record: the paper's micro-batches of 5 would
have sensitivity 2C.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from quietgrad._mechanism.clipping import Clip
from quietgrad._mechanism.mechanism import Mechanism, then
from quietgrad._mechanism.post import ProjectOnto
from quietgrad._representations.base import PublicLosses
from quietgrad._representations.subspace.partition import ParameterGroups
from quietgrad._representations.subspace.subspace import Subspace
from quietgrad.methods.dp_sgd import dp_sgd
from quietgrad.schedules import Schedule


def pdp_sgd(
    public_losses: PublicLosses,
    *,
    rank: int = 50,
    clip: float | Schedule | Clip = 1.0,
    start_step: int = 0,
    refresh_every: int = 1,
    strength: float = 1.0,
    groups: ParameterGroups = 1,
) -> Mechanism:
    """DP-SGD, then project what was released onto the top eigenvectors of public gradients.

    Args:
        public_losses: `model -> losses[m]` on public data with true labels (m = 100 in the paper).
        rank: k; the paper has 50 for MNIST, 70 for Fashion-MNIST.
        clip: C.
        start_step: project from this step on; the paper starts at epoch 1 or 15.
        refresh_every: steps between two subspaces; the paper has 1, 10, 20.
        strength: s; 1 projects fully, less keeps some of the complement.
        groups: parameter groups with a subspace each.
    """
    subspace = Subspace(
        public_losses=public_losses,
        rank=rank,
        groups=groups,
        rule="eigenvectors",
        refresh_every=refresh_every,
    )
    return _projected(
        "pdp_sgd", clip, ProjectOnto(subspace=subspace, start_step=start_step, strength=strength)
    )


def rpdp_sgd(
    *,
    rank: int = 800,
    clip: float | Schedule | Clip = 1.0,
    start_step: int = 0,
    refresh_every: int = 1,
    strength: float = 1.0,
) -> Mechanism:
    """DP-SGD, then project onto random directions: what PDP-SGD is worth without public data.

    Args:
        rank: k; the paper has 800.
        clip: C.
        start_step, refresh_every, strength: as in `pdp_sgd`; a fresh subspace costs k²p, so refresh rarely.
    """
    subspace = Subspace(public_losses=None, rank=rank, rule="random", refresh_every=refresh_every)
    return _projected(
        "rpdp_sgd", clip, ProjectOnto(subspace=subspace, start_step=start_step, strength=strength)
    )


def _projected(name: str, clip: float | Schedule | Clip, projection: ProjectOnto) -> Mechanism:
    base = dp_sgd(clip=clip)
    return then(Mechanism(name=name, releases=base.releases), projection)
