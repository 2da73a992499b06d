"""One private step is read through fewer files than in 0.1.0, and CONTRIBUTING.md says which."""

from __future__ import annotations

from scripts.walks import of_dp_sgd, of_gep, table

from quietgrad._kernels.library import level
from tests.pages import ROOT

DP_SGD, GEP = 35, 43
"""Files that one step entered in 0.1.0."""


def test_the_walks_are_shorter_than_they_were_and_written_down() -> None:
    plain, gep = of_dp_sgd(), of_gep()
    assert len(plain) < DP_SGD, plain
    assert len(gep) < GEP, gep
    assert set(plain) < set(gep)
    if level() in ("avx2", "avx512"):  # torch's path enters no kernels
        assert table(plain, gep) in (ROOT / "CONTRIBUTING.md").read_text(), "run `python -m scripts.walks`"
