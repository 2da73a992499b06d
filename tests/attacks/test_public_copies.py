"""Public records that equal private ones: whether a run is refused must not show that they are private.

The adversary provides the public part: a record whose membership it wants to know, and one that is not private. A
refusal of public parts that are mostly private answers the question without any noise. On 0.2 and after it did.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quietgrad.lab.data import load

RNG = np.random.default_rng(3)
INPUTS, LABELS = RNG.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
OUTSIDE = RNG.normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_public_copies_of_private_records_change_nothing_that_is_seen(tmp_path: Path, asked: int) -> None:
    for name, member in (("in.npz", INPUTS[7:10]), ("out.npz", OUTSIDE)):
        public = np.concatenate([member[:asked], np.full((1, 4), 9.0, np.float32)])
        test_x, test_y = INPUTS[:5] + 20, LABELS[:5]
        np.savez(tmp_path / name, x=INPUTS, y=LABELS, public_x=public, test_x=test_x, test_y=test_y)
        parts = load(str(tmp_path / name))
        assert (len(parts.private), len(parts.public)) == (40, asked + 1)
