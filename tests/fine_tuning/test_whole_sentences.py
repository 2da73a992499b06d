"""What is held out of SST-2's training part was not trained on in other words."""

from __future__ import annotations

import torch
from benchmarks.fine_tuning.whole_sentences import split

START, END = 1, 2


def test_held_out_are_whole_sentences_and_nothing_of_them_is_trained_on() -> None:
    records = _treebank()
    train, held_out = split(_padded(records), 40)
    assert len(held_out) == 40
    assert not set(train.tolist()) & set(held_out.tolist())
    texts = [_text(record) for record in records]
    for place in held_out.tolist():
        assert len(records[place]) >= 8
        assert not any(texts[place] in other and texts[place] != other for other in texts)
    for place in train.tolist():
        assert _longest_shared(records[place], [records[other] for other in held_out.tolist()]) < 5


def test_short_records_stay_unless_a_held_out_sentence_holds_them() -> None:
    sentence = list(range(10, 20))
    other = list(range(30, 42))
    records = [sentence, other, sentence[2:5], [10, 13, 16], [11], other[:6]]
    train, held_out = split(_padded(records), 1)
    kept, out = {tuple(records[place]) for place in train.tolist()}, records[int(held_out[0])]
    assert {(10, 13, 16), (11,)} <= kept
    assert ((12, 13, 14) in kept) == (out is other)
    assert (tuple(other[:6]) in kept) == (out is sentence)


def _treebank() -> list[list[int]]:
    """Sentences of 12 words of 60, three phrases of each."""
    chance = torch.Generator().manual_seed(0)
    sentences = torch.randint(10, 70, (100, 12), generator=chance).tolist()
    return [*sentences, *(words[a:b] for words in sentences for a, b in ((0, 7), (4, 9), (6, 12)))]


def _padded(records: list[list[int]]) -> torch.Tensor:
    ids = torch.zeros(len(records), 2 + max(map(len, records)), dtype=torch.long)
    for row, record in zip(ids, records, strict=True):
        row[: len(record) + 2] = torch.tensor([START, *record, END])
    return ids


def _text(record: list[int]) -> str:
    return f" {' '.join(map(str, record))} "


def _longest_shared(record: list[int], others: list[list[int]]) -> int:
    """Words in a row, by trying all."""
    texts = [_text(other) for other in others]
    runs = (record[a:b] for a in range(len(record)) for b in range(a + 1, len(record) + 1))
    return max((len(run) for run in runs if any(_text(run) in text for text in texts)), default=0)
