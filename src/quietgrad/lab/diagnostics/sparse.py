"""What sparse methods keep of the gradient (figures 2 and 3 of Random Freeze, 1 and 4 of GIP; research mode)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks, flatten
from quietgrad._representations.compose import ComposedCodec
from quietgrad._representations.masks.coordinates import is_kept
from quietgrad._representations.masks.mask import MaskCodec


class CosineSimilarity(qg.Observer):
    """cos(update, Σ_i g_i) of every step with a batch: how far the released gradient still points the true way."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._true: Tensor | None = None

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        part = flatten(grads.weighted_sum(torch.ones(grads.samples))).double()
        self._true = part if self._true is None else self._true + part

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
        if self._true is not None:
            self.values.append(cosine(self._true, flatten(update).double()))
        self._true = None


class FreezeCounts(qg.Observer):
    """How many times each coordinate was frozen, counted once an epoch."""

    def __init__(self) -> None:
        self.counts: Int[Tensor, " p"] | None = None
        self._epoch = -1

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if public.epoch == self._epoch:
            return
        self._epoch = public.epoch
        codec = mask_of(public.codec(mechanism.releases[0].representation))
        frozen = ~is_kept(codec.kept, codec.source)
        self.counts = frozen.long() if self.counts is None else self.counts + frozen

    def histogram(self) -> list[int]:
        """At j the number of coordinates that were frozen j times."""
        assert self.counts is not None, "no batch was seen"
        counted: list[int] = torch.bincount(self.counts).tolist()
        return counted


class EncodedNorms(qg.Observer):
    """‖encode(g_i)‖ of every sample that the first release's clip sees.

    Args:
        every: look at one step in so many.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.norms: dict[int, Float64[Tensor, " n"]] = {}

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if public.step % self.every:
            return
        encoded = public.codec(mechanism.releases[0].representation).encode(grads)
        seen = self.norms.get(public.step, torch.zeros(0, dtype=torch.float64))
        self.norms[public.step] = torch.cat([seen, encoded.squared_norms().sqrt()])


def cosine_by_dimension(
    dimensions: Sequence[int], noise_multiplier: float, *, seed: int = 0
) -> dict[int, float]:
    """Cosine of a Gaussian vector clipped to norm 1 with itself plus N(0, σ²) noise: it falls like 1/√d."""
    generator = torch.Generator().manual_seed(seed)
    cosines = {}
    for dimension in dimensions:
        gradient = torch.randn(dimension, generator=generator, dtype=torch.float64)
        gradient /= gradient.norm().clamp_min(1.0)
        noise = noise_multiplier * torch.randn(dimension, generator=generator, dtype=torch.float64)
        cosines[dimension] = cosine(gradient, gradient + noise)
    return cosines


def cosine(a: Float64[Tensor, " p"], b: Float64[Tensor, " p"]) -> float:
    """0 if one of them is zero."""
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else 0.0


def mask_of(codec: qg.Codec) -> MaskCodec:
    """The mask of a codec, alone or composed with another representation."""
    if isinstance(codec, MaskCodec):
        return codec
    if isinstance(codec, ComposedCodec):
        return mask_of(codec.inner if isinstance(codec.inner, MaskCodec) else codec.outer)
    raise ValueError(
        f"Expected a mechanism with a mask, got a {type(codec).__name__}. Watch a freeze or top_groups run."
    )
