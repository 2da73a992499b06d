"""Each matrix's gradient through a pair of thin gradient carriers (RGP's representation)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Blocks
from quietgrad._gradients.space import Shapes, Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.low_rank.carriers import CarrierRule, Carriers, HistoricalUpdate
from quietgrad._representations.low_rank.matrices import Ranks, as_matrix, check_rank, choose_matrices
from quietgrad._representations.low_rank.products import off_rows, times_left, times_right

CarriedParts = Literal["orthogonal", "paper", "left"]

LEFT, RIGHT = ".left", ".right"
SALT = 0x4C52
"""This representation's own stream of public randomness."""


@dataclass(frozen=True, kw_only=True)
class LowRank(Representation):
    """Encode a matrix gradient G by its products with carriers L and R.

    Other parameters pass unchanged.

        orthogonal   A = GRᵀ, D = LᵀG(I − RᵀR)    → AR + LD(I − RᵀR)
        paper        ∂L = GRᵀ, ∂R = LᵀG           → ∂L·R + L·∂R − LLᵀ·∂L·R
        left         A = GRᵀ                      → AR

    The first two decode to the same projection of G. A and D are orthogonal parts of it, ‖A‖² + ‖D‖² ≤ ‖G‖², where
    the paper's pair counts LᵀGRᵀ twice; so a clip takes less from them. D's noise is projected again by the decoder.

    Args:
        rank: r, capped by each matrix's shape; or a rank for each name, `*` matching anything.
        carriers: how L and R come from what is public.
        release: which parts, see above.
        matrices: names of the parameters with carriers, `*` matching anything; left out, every matrix that gets at
            least twice smaller except the last, which is taken to be the classifier.

    Raises:
        ValueError: a rank is below 1, or there is no such release.

    Example:
        low_rank = qg.LowRank(rank=4)
        mechanism = qg.methods.dp_sgd(clip=1.0) @ low_rank  # what qg.methods.rgp(rank=4) does
    """

    rank: Ranks
    carriers: CarrierRule = field(default_factory=HistoricalUpdate)
    release: CarriedParts = "orthogonal"
    matrices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_rank(self.rank)
        if self.release not in get_args(CarriedParts):
            raise ValueError(
                f"Expected release to be one of {', '.join(get_args(CarriedParts))}, got {self.release!r}."
            )

    def init(self, public: Public) -> State:
        return {"carriers": self.carriers.init({name: _weight(public, name) for name in self._ranks(public)})}

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        rng = public.generator(SALT)
        carriers = {
            name: self.carriers.carriers(
                name, _weight(public, name), rank, public.step, state["carriers"], rng
            )
            for name, rank in self._ranks(public).items()
        }
        return LowRankCodec(public.space, carriers, self.release), state

    def _ranks(self, public: Public) -> dict[str, int]:
        if any(public.space.get(name) != parameter.shape for name, parameter in public.parameters.items()):
            raise ValueError(
                "LowRank needs the matrices as they are, but another representation encoded them first. Put it "
                "inside: qg.within(other, LowRank(…)) works on the carriers."
            )
        return choose_matrices(public.parameters, self.rank, self.matrices)


class LowRankCodec(Codec):
    """One step's carriers; blocks `<name>.left` and `<name>.right` stand for the matrix `<name>`."""

    def __init__(self, outside: Space, carriers: dict[str, Carriers], release: CarriedParts) -> None:
        self.carriers, self._outside, self._release = carriers, outside, release
        self.space = Space({})
        for name in outside:
            part = outside.restrict([name])
            self.space |= Space.of_shapes(self._encoded_shapes(name), part) if name in carriers else part

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        encoded: dict[str, BlockGrads] = {}
        for name, block in grads.blocks.items():
            encoded |= self._encode(name, block) if name in self.carriers else {name: block}
        return BlockwiseGrads({name: encoded[name] for name in self.space}, grads.samples)

    def decode(self, released: Released) -> Blocks:
        return {
            name: self._decode(name, released.blocks).reshape(shape)
            if name in self.carriers
            else released.blocks[name]
            for name, shape in self._outside.items()
        }

    def _encoded_shapes(self, name: str) -> Shapes:
        left, right = self.carriers[name].left, self.carriers[name].right
        shapes = {name + LEFT: torch.Size((left.shape[0], len(right)))}
        return shapes if self._release == "left" else {**shapes, name + RIGHT: right.shape}

    def _encode(self, name: str, block: BlockGrads) -> dict[str, BlockGrads]:
        left, right = self.carriers[name].left, self.carriers[name].right
        encoded = {name + LEFT: times_right(block, right)}
        if self._release != "left":
            rows = times_left(block, left)
            encoded[name + RIGHT] = off_rows(rows, right) if self._release == "orthogonal" else rows
        return encoded

    def _decode(self, name: str, blocks: Blocks) -> Float[Tensor, "o i"]:
        left, right = self.carriers[name].left, self.carriers[name].right
        columns = blocks[name + LEFT]
        if self._release == "left":
            return columns @ right
        rows = blocks[name + RIGHT]
        if self._release == "paper":
            columns = columns - left @ (left.T @ columns)
        else:
            rows = rows - (rows @ right.T) @ right
        # columns @ right + left @ rows, in one product that writes the large matrix once
        return torch.cat([columns, left], dim=1) @ torch.cat([right, rows], dim=0)


def _weight(public: Public, name: str) -> Float[Tensor, "o i"]:
    return as_matrix(public.parameters[name])
