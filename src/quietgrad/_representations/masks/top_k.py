"""Each sample's own largest coordinates, optionally their signs only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import Blocks, DenseGrad, flatten_rows, split_blocks
from quietgrad._gradients.space import Space, coordinates
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State


class TopKCodec(Codec):
    """Row by row: all but the k largest |coordinates| become 0. The choice is private, so noise goes everywhere."""

    def __init__(self, space: Space, kept: int, sign: bool) -> None:
        self.space, self.kept, self.sign = space, kept, sign

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        sparse = split_blocks(self._sparse(flatten_rows(grads.dense())), self.space)
        return BlockwiseGrads({name: DenseGrad(rows) for name, rows in sparse.items()}, grads.samples)

    def decode(self, released: Released) -> Blocks:
        return released.blocks

    def _sparse(self, rows: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
        dropped = rows.abs() < self._smallest_kept(rows.abs())
        sparse = (rows.sign() if self.sign else rows).masked_fill(dropped, 0.0)
        # The sign of an infinity is finite: the row must stay recognisable, for the clip to drop it.
        return sparse.masked_fill(~rows.isfinite().all(1, keepdim=True), torch.nan)

    def _smallest_kept(self, magnitudes: Float[Tensor, "n p"]) -> Float[Tensor, "n 1"]:
        place = magnitudes.shape[1] - self.kept
        if magnitudes.device.type != "cpu":
            return magnitudes.kthvalue(place + 1, dim=1, keepdim=True).values
        # numpy's partition is vectorised; torch's topk takes ten times as long on the CPU.
        chosen = np.partition(magnitudes.numpy(), place, axis=1)[:, place : place + 1]
        return torch.from_numpy(np.ascontiguousarray(chosen))


@dataclass(frozen=True, eq=False)
class TopK(Representation):
    """encode(g_i) = g_i on its own k·p largest |coordinates| (and what ties with the smallest of them), 0 elsewhere.

    Args:
        keep: k, the part that is kept, in (0, 1].
        sign: replace what is kept by its sign.
    """

    keep: float
    sign: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(
                f"Expected keep in (0, 1], got {self.keep}. It is the part of each gradient that is kept."
            )

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        kept = max(1, round(self.keep * coordinates(public.space)))
        return TopKCodec(public.space, kept, self.sign), state
