"""A loop over PoissonBatches on every pattern: mixing is refused before the first release, nothing else is."""

from __future__ import annotations

import pytest
import torch

import quietgrad as qg
from tests.independence.patterns import APART, MIXING, Pattern

STEPS = 2


def run(pattern: Pattern, seed: int = 0) -> tuple[qg.Privatizer, int]:
    """Train for two steps; the Privatizer, and how many were released."""
    torch.manual_seed(seed)
    model = pattern.model()
    batches = qg.PoissonBatches(
        pattern.records(), rate=0.4, steps=STEPS, collate_fn=pattern.collate, pad_to=pattern.pad_to
    )
    private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
    for batch in batches:
        for micro_batch in batch.split(16):
            private.backward(pattern.losses(model, micro_batch))
        private.release()
    return private, private.step


@pytest.mark.parametrize("pattern", MIXING, ids=str)
def test_a_loop_that_mixes_records_is_refused(pattern: Pattern) -> None:
    with pytest.raises(qg.PrivacyError):
        run(pattern)


@pytest.mark.parametrize("pattern", APART, ids=str)
def test_a_loop_that_keeps_records_apart_is_accepted(pattern: Pattern) -> None:
    private, released = run(pattern)
    assert released == STEPS
    assert private.independence.is_checked
    assert private.covered
    private.close()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", APART, ids=str)
def test_no_seed_is_refused(pattern: Pattern) -> None:
    """Draws, halves and directions differ each time too: they come from the system's generator."""
    for seed in range(1, 21):
        private, released = run(pattern, seed)
        assert released == STEPS, seed
        private.close()
