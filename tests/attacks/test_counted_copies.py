"""N tells of a known record whether it is private: records with the content of a test record were left out.

The number of private records is in the ledger, the statement and the report. Whoever knows a test record (or gives one)
saw from N alone whether it is among the private ones, at any ε.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quietgrad.lab.data import Parts, load

RNG = np.random.default_rng(3)
X, LABELS, TEST = RNG.normal(size=(200, 4)), np.arange(200) % 2, RNG.normal(size=(20, 4))
PUBLIC = np.concatenate([TEST[:1] + 1, RNG.normal(size=(9, 4))])


def parts(folder: Path, known: np.ndarray | None, **arrays: np.ndarray) -> Parts:
    """The data with or without a known record in the private part."""
    x = X.copy()
    if known is not None:
        x[7] = known
    np.savez(folder / "own.npz", x=x, y=LABELS, **arrays)  # type: ignore[arg-type]
    return load("own.npz", data_dir=folder, test=None if "test_x" in arrays else 40)


@pytest.mark.parametrize("known", [TEST[0], PUBLIC[0]], ids=["test", "public"])
def test_sizes_and_refusals_do_not_depend_on_a_private_record(tmp_path: Path, known: np.ndarray) -> None:
    given = {"test_x": TEST, "test_y": LABELS[:20], "public_x": PUBLIC}
    without, with_it = (parts(tmp_path, record, **given) for record in (None, known))
    assert without.record == with_it.record
    assert without.sizes == with_it.sizes
    assert len(with_it.private) == 200
    assert without.public_inputs.equal(with_it.public_inputs)


def test_a_part_that_is_drawn_by_row_leaves_out_nothing(tmp_path: Path) -> None:
    """Copies of one record everywhere: 40 for testing, 160 private, as with distinct records."""
    x = np.repeat(X[:1], 200, 0)
    np.savez(tmp_path / "own.npz", x=x, y=LABELS)
    copies, distinct = load("own.npz", data_dir=tmp_path, test=40), parts(tmp_path, None)
    assert copies.record == distinct.record
    assert (len(copies.private), len(copies.test)) == (160, 40)
