"""Embedding and residual as one vector, for one joint clip."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.subspace.residual import ResidualCodec
from quietgrad._representations.subspace.subspace import Subspace, SubspaceCodec

_PREFIX = "embedding:"


class JointGrads(PerSampleGrads):
    """(w_i/s₁, r_i/s₂)."""

    def __init__(self, parts: tuple[PerSampleGrads, PerSampleGrads], scales: tuple[float, float]) -> None:
        self._parts, self._scales = parts, scales

    @property
    def samples(self) -> int:
        return self._parts[0].samples

    @property
    def space(self) -> Space:
        embedding, residual = self._parts
        return embedding.space.rename(_PREFIX) | residual.space

    def squared_norms(self) -> Float64[Tensor, " n"]:
        embedding, residual = (part.squared_norms() for part in self._parts)
        return embedding / self._scales[0] ** 2 + residual / self._scales[1] ** 2

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        embedding, residual = (
            part.weighted_sum(weights / scale) for part, scale in zip(self._parts, self._scales, strict=True)
        )
        return _prefix_names(embedding) | residual

    def dense(self) -> Blocks:
        embedding, residual = (
            {name: block / scale for name, block in part.dense().items()}
            for part, scale in zip(self._parts, self._scales, strict=True)
        )
        return _prefix_names(embedding) | residual


class JointCodec(Codec):
    """Encodes to (w/s₁, r/s₂), decodes to Bᵀw + (I − BᵀB)r."""

    def __init__(
        self, embedding: SubspaceCodec, residual: ResidualCodec, scales: tuple[float, float]
    ) -> None:
        self._embedding, self._residual, self._scales = embedding, residual, scales
        self.space = embedding.space.rename(_PREFIX) | residual.space

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        return JointGrads((self._embedding.encode(grads), self._residual.encode(grads)), self._scales)

    def decode(self, released: Released) -> Blocks:
        embedding = {
            name: released.blocks[f"{_PREFIX}{name}"] * self._scales[0] for name in self._embedding.space
        }
        residual = {name: released.blocks[name] * self._scales[1] for name in self._residual.space}
        total = self._residual.decode(replace(released, blocks=residual))
        for name, block in self._embedding.decode(replace(released, blocks=embedding)).items():
            total[name] = total[name] + block
        return total


@dataclass(frozen=True, eq=False, kw_only=True)
class JointSubspace(Representation):
    """encode(g) = (B g/s₁, (g − BᵀB g)/s₂) as one vector; clipped to 1 it keeps ‖w‖²/s₁² + ‖r‖²/s₂² ≤ 1.

    Args:
        subspace: chooses B.
        scales: (s₁, s₂).
    """

    subspace: Subspace
    scales: tuple[float, float]

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        codec = public.codec(self.subspace)
        assert isinstance(codec, SubspaceCodec)
        residual = ResidualCodec(codec, public.space, self.scales[1])
        return JointCodec(codec, residual, self.scales), state


def _prefix_names(embedding: Blocks) -> Blocks:
    return {f"{_PREFIX}{name}": block for name, block in embedding.items()}
