"""`check_independence` on every pattern: each loop that mixes records is refused, none that keeps them apart is."""

from __future__ import annotations

import pytest
import torch

from quietgrad._errors import PrivacyError
from quietgrad._independence.direct import check_losses_independent
from quietgrad._independence.questions import IndependenceOutcome, IndependenceVerdict
from tests.independence.patterns import APART, MIXING, Pattern


def checked(pattern: Pattern) -> IndependenceVerdict:
    torch.manual_seed(0)
    model = pattern.model()
    return check_losses_independent(
        lambda batch: pattern.losses(model, batch), pattern.records(), pattern.collate, model=model
    )


def test_there_are_enough_patterns() -> None:
    assert len({p.name for p in MIXING}) == len(MIXING) >= 40
    assert len({p.name for p in APART}) == len(APART) >= 60


@pytest.mark.parametrize("pattern", MIXING, ids=str)
def test_a_loop_that_mixes_records_is_refused(pattern: Pattern) -> None:
    with pytest.raises(PrivacyError, match="depends on other records"):
        checked(pattern)


# In a loop all of them run in `make test`: test_patterns_in_loops.py.
HALF = [
    pytest.param(pattern, id=str(pattern), marks=pytest.mark.slow if place % 2 else ())
    for place, pattern in enumerate(APART)
]


@pytest.mark.parametrize("pattern", HALF)
def test_a_loop_that_keeps_records_apart_is_accepted(pattern: Pattern) -> None:
    assert checked(pattern).outcome is IndependenceOutcome.APART
