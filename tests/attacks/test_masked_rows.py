"""Rows picked by a mask: a masked-language-model head sees the tokens of all records in one list.

The adversary lets the library learn a batch in which every record has three masked tokens; the next batch has other
counts with the same total, and each gradient is cut at the wrong places. He reads what the batch releases with and
without one record.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.attacks.harness import influence

TOKENS, VOCABULARY, WIDTH = 12, 11, 6


class MaskedHead(nn.Module):
    """Embedding, then a linear head on the masked positions only; one loss per record."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(self.words(text)))
        each = nn.functional.cross_entropy(self.head(hidden[mask]), text[mask], reduction="none")
        owner = mask.nonzero()[:, 0]
        return scale * hidden.new_zeros(len(text)).index_add(0, owner, each)


def texts(counts: list[int], seed: int) -> TensorDataset:
    """Records with so many masked tokens, of weights between 0.01 and 100."""
    rng = torch.Generator().manual_seed(seed)
    text = torch.randint(VOCABULARY, (len(counts), TOKENS), generator=rng)
    mask = torch.arange(TOKENS)[None] < torch.tensor(counts)[:, None]
    return TensorDataset(text, mask, 10.0 ** (4 * torch.rand(len(counts), generator=rng) - 2))


REGULAR = [3] * 8
LATER, VICTIM = [1, 3, 2, 10, 4, 1, 2, 1], 3
"""Without the victim's ten, 14 tokens of seven records are left: cut into equal parts once more."""


@pytest.mark.parametrize("seed", range(4))
def test_tokens_of_a_mask_are_never_given_to_another_record(seed: int) -> None:
    """On 0.1: 1.8, 2.4, 2.2 and 2.0 C."""
    data = texts(REGULAR + LATER, seed)
    data.tensors[2][8 + VICTIM] = 1000.0
    outcome = influence(MaskedHead, data, list(range(8, 16)), before=[list(range(8))], removed=[8 + VICTIM])
    assert outcome.holds(), outcome
