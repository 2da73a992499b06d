"""The table of docs/sharp_edges.md has a row for each pattern, and says what the tests find."""

from __future__ import annotations

from tests.independence.patterns import APART, MIXING
from tests.test_sharp_edges import rows


def test_every_pattern_has_a_row() -> None:
    found = {name: (outcome, test) for name, outcome, test in rows() if "_a_trainer_that_" in test}
    assert found.keys() == {str(pattern) for pattern in [*MIXING, *APART]}
    assert all(found[str(pattern)][0] == "refused" for pattern in MIXING)
    assert all(found[str(pattern)][0].startswith("right") for pattern in APART)
