"""DP-PowerSGD: DP-SGD followed by PowerSGD's low-rank projection (Vogels, Karimireddy, Jaggi 2019; the baseline of Yu
et al. 2021).

    g̃ = (Σ_i clip_C(g_i) + σC·z) / qN                          the whole gradient
    M = g̃ (+ e),  P = orth(MQ),  Q ← MᵀP,  ĝ = PQᵀ  (, e ← M − ĝ)     for each matrix, after the release

Formal guarantee: that of DP-SGD; the projection and the error that is fed back are functions of what was released.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import Blocks
from quietgrad._mechanism.clipping import Clip
from quietgrad._mechanism.mechanism import Mechanism, then
from quietgrad._mechanism.post import Post
from quietgrad._representations.base import Public, State
from quietgrad._representations.low_rank.carriers import gaussian, orthonormal_columns
from quietgrad._representations.low_rank.matrices import as_matrix, check_rank, choose_matrices
from quietgrad.methods.dp_sgd import dp_sgd
from quietgrad.schedules import Schedule

SALT = 0x5053
"""This post-processing's own stream of public randomness."""


def dp_power_sgd(
    *,
    rank: int,
    clip: float | Schedule | Clip = 1.0,
    error_feedback: bool = False,
    matrices: Sequence[str] | None = None,
) -> Mechanism:
    """The whole noisy gradient, then its best rank-r part by one power iteration.

    Args:
        rank: r, capped by each matrix's shape.
        clip: as in `dp_sgd`.
        error_feedback: add what the projection cut off to the next step's noisy gradient.
        matrices: names of the projected parameters, `*` matching anything. Left out: every matrix that gets at least
            twice smaller, except the last one, the classifier.
    """
    chosen = None if matrices is None else tuple(matrices)
    mechanism = then(
        dp_sgd(clip=clip), PowerProjection(rank=rank, error_feedback=error_feedback, matrices=chosen)
    )
    return Mechanism(name="dp_power_sgd", releases=mechanism.releases, post=mechanism.post)


@dataclass(frozen=True, kw_only=True)
class PowerProjection(Post):
    """ĝ = PQᵀ for each chosen matrix, started from the last step's Q; see the module's equations."""

    rank: int
    error_feedback: bool = False
    matrices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def init(self, public: Public) -> State:
        ranks = choose_matrices(public.parameters, self.rank, self.matrices)
        rng = public.generator(SALT)
        weights = {name: as_matrix(public.parameters[name]) for name in ranks}
        state: State = {
            "start": {name: gaussian((w.shape[1], ranks[name]), w, rng) for name, w in weights.items()},
        }
        if self.error_feedback:
            state["error"] = {name: w.new_zeros(w.shape) for name, w in weights.items()}
        return state

    def apply(self, blocks: Blocks, public: Public, state: State) -> tuple[Blocks, State]:
        after: State = {key: {} for key in state}
        update = dict(blocks)
        for name, start in state["start"].items():
            matrix = as_matrix(blocks[name]) + (state["error"][name] if self.error_feedback else 0.0)
            projected, after["start"][name] = _project(matrix, start, public)
            if self.error_feedback:
                after["error"][name] = matrix - projected
            update[name] = projected.reshape(blocks[name].shape)
        return update, after


def _project(
    matrix: Float[Tensor, "o i"], start: Float[Tensor, "i r"], public: Public
) -> tuple[Float[Tensor, "o i"], Float[Tensor, "i r"]]:
    """PQᵀ, and Q to start from in the next step."""
    left: Float[Tensor, "o r"] = orthonormal_columns(matrix @ start, public.generator(SALT))
    right = matrix.T @ left
    return left @ right.T, right
