"""The length of a record that adds nothing shows in the last bits of what all others add.

Padding to the longest record of a micro-batch changes the shape of every product, and so how other rows are rounded.
The clip bounds the record's own row; it does not bound this. With a stated length nothing of it remains.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from tests.independence.data import CLASSES, WORDS
from tests.independence.models import Attention

RECORDS = 12


def texts(length: int) -> list[Any]:
    """Twelve texts. The loss of the last one is not a number, so it adds nothing, whatever its length is."""
    generator = torch.Generator().manual_seed(0)
    lengths = [*torch.randint(3, 9, (RECORDS - 1,), generator=generator).tolist(), length]
    weights = [*[1.0] * (RECORDS - 1), float("nan")]
    known = [torch.randint(1, WORDS, (40,), generator=generator)[:many] for many in lengths]
    return [(x, i % CLASSES, weight) for i, (x, weight) in enumerate(zip(known, weights, strict=True))]


def released(length: int, pad_to: Any) -> Tensor:
    """Run one step without noise on all records, and return its gradient."""
    torch.manual_seed(0)
    model: nn.Module = Attention(True)
    batches = qg.PoissonBatches.replay(texts(length), [range(RECORDS)], rate=0.5, pad_to=pad_to)
    mechanism = qg.methods.dp_sgd(clip=100.0).with_noise(0.0)
    with qg.Privatizer(model, mechanism, batches, deterministic=True) as private:
        for batch in batches:
            for x, y, weight in batch.split(RECORDS):
                private.backward(F.cross_entropy(model(x), y, reduction="none") * weight)
            private.release()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_stated_length_hides_the_length_of_a_record() -> None:
    assert torch.equal(released(3, 40), released(39, 40))


def test_the_longest_record_shows_where_the_choice_was_made() -> None:
    """The attack itself: it must find what it looks for."""
    assert not torch.equal(released(3, "longest"), released(39, "longest"))
