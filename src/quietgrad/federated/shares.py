"""Noise in shares, for a server that must not see any client's update: each client adds its part before masking.

    v_i = (round(clip(u_i)/γ) + w_i) mod 2³¹,     Σ_i v_i mod 2³¹ = Σ_i round(clip(u_i)/γ) + Σ_i w_i

A secure sum opens Σ v_i and nothing else. Each w_i is a Gaussian integer of std 2^k steps, so any t of them make noise
of std √t·2^k·γ, the std that is accounted. Clients that drop out take their share along: below t the sum must not be
opened, above t there is more noise than accounted.

Formal guarantee: clip and noise are the clients' work, and t of the clients that are in the sum are honest about it.
Reduction modulo 2³¹ happens after both, so a sum that wraps is damaged and no less private. A sum of rounded Gaussians
is not a rounded Gaussian: given what rounding took away from each, w_i is a discrete Gaussian on a shifted lattice, and
the sum of n such has, in each point, the probability of one of n times the variance up to a factor 1 ± 5n·e^(−π²4^k)
(Poisson summation). With k ≥ 8 this is below 10^(−280000) for any model, number of clients and of rounds.
Checked by: tests/federated/test_shares.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import DenseGrad, flatten, split_blocks
from quietgrad._gradients.space import Shapes, coordinates
from quietgrad._gradients.stages import BlockwiseGrads, Released
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._noise.gaussian import Gaussian, Widened, widen_noise
from quietgrad._noise.sources import NoiseSource
from quietgrad.federated.rounds import Update

MODULUS = 1 << 31
"""Of the integers that clients send: Flower's SecAgg+ sums numbers of 31 bits."""
COARSEST, FINEST = 8, 20
"""k, the logarithm of a share's std in steps."""
TAILS = 10.0
"""Standard deviations of the noise for which there is room beside the largest sum."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The part of the noise that each client adds; public, and the same for server and clients.

    Args:
        clients: N, all of which take part in every round unless they drop out.
        least: t, the number of shares that make the whole noise: a sum of fewer clients must never be opened. A client
            knows its own share: if c of them reveal it to the server, t − c shares protect the others.

    Raises:
        ValueError: fewer than 2 shares make the noise, or all clients would have to.

    Example:
        shares = qg.federated.Shares(clients=100, least=80)
        server = qg.federated.FederatedServer(model, mechanism, clients=100, rate=1.0, rounds=5, shares=shares)
    """

    clients: int
    least: int

    def __post_init__(self) -> None:
        if not 2 <= self.least < self.clients:
            raise ValueError(
                f"Expected 2 ≤ least < clients, got least={self.least} of {self.clients} clients. Choose how many "
                "must be in a sum, some fewer than all: those beyond may drop out."
            )

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism whose noise clients cannot share.

        Raises:
            PrivacyError: it is no Gaussian, or there is none.
        """
        # The type itself: clients draw independent Gaussian integers, whatever a subclass would draw or remember.
        if type(mechanism.noise) is not Gaussian or not mechanism.multiplier(0) > 0:
            raise PrivacyError(
                f"The noise of {mechanism.name} cannot be shared among clients: it takes Gaussian noise with σ > 0. "
                "Calibrate a method without private selection, or let the server add the noise (shares=None)."
            )

    def add_noise(
        self, mechanism: Mechanism, update: Update, step: int, source: NoiseSource
    ) -> Int64[Tensor, " p"]:
        """Clip and round a client's encoded update, add its share of the noise, and reduce modulo 2³¹."""
        parts = [
            self._noised(mechanism, release, blocks, step, source)
            for release, blocks in zip(mechanism.releases, update, strict=True)
        ]
        return torch.cat(parts).remainder_(MODULUS)

    def open_sum(
        self, mechanism: Mechanism, spaces: Sequence[Shapes], total: Int64[Tensor, " p"], step: int
    ) -> list[Released]:
        """Return the releases in a sum of what clients sent, divided by N.

        Raises:
            ValueError: the sum has another length.
        """
        sizes = [coordinates(space) for space in spaces]
        if total.shape != (sum(sizes),):
            raise ValueError(
                f"Expected a sum of {sum(sizes)} numbers, got {tuple(total.shape)}. Did all clients build the same "
                "model and mechanism?"
            )
        centred = (total + MODULUS // 2).remainder(MODULUS) - MODULUS // 2
        released = []
        for release, space, part in zip(mechanism.releases, spaces, centred.split(sizes), strict=True):
            wide, _ = self._wide(mechanism, release, coordinates(space), step)
            values = split_blocks(wide.grid.values(part).div_(self.clients).float(), space)
            released.append(wide.make_release(values, float(self.clients)))
        return released

    def _noised(
        self,
        mechanism: Mechanism,
        release: Release,
        blocks: dict[str, Tensor],
        step: int,
        source: NoiseSource,
    ) -> Int64[Tensor, " q"]:
        row = BlockwiseGrads({name: DenseGrad(block.detach()[None]) for name, block in blocks.items()}, 1)
        clipped = flatten(release.clip(row, step).wide())
        wide, log_std = self._wide(mechanism, release, len(clipped), step)
        return wide.grid.steps(clipped) + share_of_noise(len(clipped), log_std, source)

    def _wide(self, mechanism: Mechanism, release: Release, size: int, step: int) -> tuple[Widened, int]:
        """Choose the grid of a release, and k: as fine as the largest sum and the noise's tails leave room for."""
        # The finer the grid, the less rounding costs, but N updates of the largest norm and the noise of all N clients
        # must not wrap around 2³¹. A client's share has the std 2^k, so in steps an update is √t·2^k·S/s long.
        std, sensitivity = mechanism.std(release, step), release.clip.sensitivity(step)
        most = self.clients * math.sqrt(self.least) * sensitivity / std + TAILS * math.sqrt(self.clients)
        log_std = min(FINEST, math.floor(math.log2(MODULUS / 2 / most)))
        if log_std < COARSEST:
            raise ValueError(
                f"{self.clients} clients at {std / sensitivity:g} times the clip do not fit into a sum of 31 bits. Use "
                "fewer clients, or raise the noise multiplier."
            )
        steps = math.sqrt(self.least) * 2**log_std
        return widen_noise(std=std, sensitivity=sensitivity, coordinates=size, steps=steps), log_std


def share_of_noise(count: int, log_std: int, source: NoiseSource) -> Int64[Tensor, " count"]:
    """Draw Gaussian integers of std 2^log_std: the source's, with their lowest bits rounded away.

    A sum in the source's fine steps plus its integers, rounded to coarse ones, is post-processing of that sum; and a
    whole number of coarse steps passes through the rounding unchanged.
    """
    lost = source.std.bit_length() - 1 - log_std
    assert source.std == 1 << (log_std + lost), "a source's std is a power of two"
    return (source.integers(count).to(torch.int64) + (1 << lost >> 1)) >> lost
