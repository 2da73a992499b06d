"""Noise in shares, for ranks that hold records of their own and need not trust each other with them.

    v_r = round(Σ_{i on rank r} clip(g_i)/γ) + w_r + m_r,     Σ_r m_r = 0 mod 2⁶⁴,     std(w_r)·γ = s/√t

Each rank draws its records by its own coins, and adds its share w_r and its masks m_r before it sends anything. The
masks of two ranks cancel: only the sum over all ranks can be read, and a ring's partial sums are uniform numbers.

Formal guarantee: let t of the W ranks be honest, that is, add their share and keep it, their draws and their masks to
themselves. Everything that the other ranks see, pooled, is a function of the sum of the honest ranks' parts and of
their t shares, which have the std s of the ledger's event. Which honest records were drawn is hidden from them too. So
the ledger's ε protects every record of an honest rank from all other ranks. With t = 1 the rank's own message has the
whole noise, and masks are left out. Whoever sees releases only sees √(W/t) times the accounted noise. That sums of
rounded Gaussians are no less private than one of them: `federated/shares.py`. Ranks follow the protocol: what a rank
that sends false keys or sums could learn is not covered. The masks assume X25519 and AES-256.
Checked by: tests/attacks/test_other_ranks.py, tests/distributed/test_local_records.py.
"""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from quietgrad._collective import Reducer
from quietgrad._noise.aes import RandomWords

AT_ONCE = 1 << 20
"""Words of a mask that are made at a time."""


def check_honest(honest: int, world: int, *, local_records: bool) -> None:
    """Refuse shares that would protect nobody.

    Raises:
        ValueError: there are not so many ranks, or every rank holds all records anyway.
    """
    if not 1 <= honest <= max(1, world - 1):
        raise ValueError(
            f"Expected 1 ≤ honest ≤ {max(1, world - 1)}, got {honest} of {world} ranks. A rank knows its own share, so "
            "at most the others' protect them from it."
        )
    if not local_records:
        raise ValueError(
            "honest= protects the records of a rank from the other ranks, but every rank holds all records. Give each "
            'rank its own and pass records="local", or leave honest out.'
        )


class PairwiseMasks:
    """Numbers that hide a rank's message and cancel in the sum over all ranks.

    Args:
        reducer: of the ranks; they exchange public keys here, together.
    """

    def __init__(self, reducer: Reducer) -> None:
        own = X25519PrivateKey.generate()
        keys = reducer.gather(own.public_key().public_bytes_raw())
        self._rank, self._messages = reducer.rank, 0
        self._keys = {
            rank: HKDF(SHA256(), 32, salt=None, info=b"quietgrad masks").derive(
                own.exchange(X25519PublicKey.from_public_bytes(key))
            )
            for rank, key in enumerate(keys)
            if rank != reducer.rank
        }

    def add(self, message: Tensor) -> None:
        """Add the masks of the next message, modulo 2⁶⁴, in place."""
        assert message.dtype == torch.int64, "masks hide whole numbers"
        for rank, key in self._keys.items():
            # Both ranks of a pair make the same stream; one adds it, the other takes it away.
            words, sign = RandomWords(key, self._messages), 1 if self._rank < rank else -1
            for part in message.split(AT_ONCE):
                mask = torch.from_numpy(words.take(len(part)).view(np.int64))
                part.add_(mask.to(part.device), alpha=sign)
        self._messages += 1
