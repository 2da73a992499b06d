"""The length of a micro-batch is stated, or refused where it follows the draw."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from tests.independence import data
from tests.independence.models import MeanOfWords
from tests.independence.patterns import plainly

MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def train(
    records: list[Any], *, rate: float = 0.4, size: int = 16, model: nn.Module | None = None, **options: Any
) -> qg.Privatizer:
    model = MeanOfWords(True) if model is None else model
    batches = qg.PoissonBatches(records, rate=rate, steps=4, **options)
    private = qg.Privatizer(model, MECHANISM, batches)
    for batch in batches:
        for micro_batch in batch.split(size):
            private.backward(plainly(model, micro_batch[:2]))
        private.release()
    private.close()
    return private


def test_padding_to_the_longest_is_refused_unless_it_is_stated() -> None:
    with pytest.raises(qg.PrivacyError, match="pad_to='longest'"):
        train(data.texts(), collate_fn=data.pad)
    stated = train(data.texts(), collate_fn=data.pad, pad_to="longest")
    assert stated.covered
    assert "padded to the longest" in str(stated.explain())
    assert "padded to the longest" in str(train(data.texts(), pad_to="longest").explain())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pad_to": 40}, "padded or cut to the length 40"),
        ({"pad_to": 10}, "padded or cut to the length 10"),
        (
            {"pad_to": range(8, 41, 8)},
            "the least of 8, 16, 24, 32, 40 that holds it; these classes are taken as public",
        ),
        ({"collate_fn": data.pad_to_40}, "did not depend on the draw"),
        ({"collate_fn": qg.pad_collate(40, mask=True)}, "padded or cut to the length 40"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_stated_lengths_are_accepted_and_named(options: dict[str, Any], said: str) -> None:
    private = train(data.texts(), **options)
    assert private.independence.is_checked
    assert said in private.explain().padding


def test_features_as_many_as_records_are_no_length() -> None:
    """16 features in micro-batches of 16 records: a half alone has 8 rows and still 16 features."""
    records = [(torch.randn(16), i % data.CLASSES) for i in range(64)]
    model = nn.Linear(16, data.CLASSES)
    assert train(records, model=model, collate_fn=data.stack).independence.is_checked


def test_a_data_loader_states_its_lengths_in_the_check() -> None:
    records, model = data.texts(), MeanOfWords(True)
    sampler = qg.PoissonSampler(len(records), rate=0.5, steps=6)

    def losses_of(batch: list[Tensor]) -> Tensor:
        return plainly(model, batch)

    with qg.Privatizer(model, MECHANISM, sampler) as private:
        assert private.explain().padding == "no length was stated"
        with pytest.raises(qg.PrivacyError, match="pad_to='longest'"):
            private.check_independence(losses_of, records, data.pad)
        private.check_independence(losses_of, records, data.pad, pad_to="longest")
        assert "padded to the longest" in private.explain().padding
    with qg.Privatizer(model, MECHANISM, qg.PoissonSampler(len(records), rate=0.5, steps=6)) as private:
        private.check_independence(losses_of, records, qg.pad_collate(40))
        assert "the length 40" in private.explain().padding


def test_one_record_alone_needs_no_other(recwarn: pytest.WarningsRecorder) -> None:
    private = train(data.texts(), size=1, pad_to=40)
    assert private.covered
    assert "every micro-batch holds one record" in str(private.explain())
    assert not [warning for warning in recwarn if "not checked" in str(warning.message)]


def test_a_loop_that_is_left_early_gets_the_right_remedy() -> None:
    model = MeanOfWords(True)
    batches = qg.PoissonBatches(data.texts(), rate=0.4, steps=3, pad_to=40)
    private = qg.Privatizer(model, MECHANISM, batches)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            for micro_batch in batch.split(64):
                private.backward(plainly(model, micro_batch))
                private.release()
            if not len(batch):
                private.release()
    private.close()
    (warning,) = [str(w.message) for w in caught if "not checked" in str(w.message)]
    assert "call release() after that loop" in warning
    assert "independence not checked" in private.explain().independence


UGLY: dict[str, list[Any]] = {
    "lengths from 0": [(torch.ones(length % 40, dtype=torch.long), length % 4) for length in range(120)],
    "lists": [([1] * (1 + length % 39), length % 4) for length in range(120)],
    "numpy": [(torch.ones(1 + length % 39, dtype=torch.long).numpy(), length % 4) for length in range(120)],
    "one long record": [(torch.ones(39 if i == 7 else 3, dtype=torch.long), i % 4) for i in range(120)],
    "one empty record": [(torch.ones(0 if i == 7 else 3, dtype=torch.long), i % 4) for i in range(120)],
}


@pytest.mark.parametrize("pad_to", [40, [8, 40], "longest"], ids=str)
@pytest.mark.parametrize("rate", [0.005, 0.3], ids=["nearly empty draws", "full draws"])
@pytest.mark.parametrize("kind", UGLY)
def test_ugly_records_train(kind: str, rate: float, pad_to: Any) -> None:
    private = train(UGLY[kind], rate=rate, size=8, pad_to=pad_to)
    assert private.step == 4
    assert private.covered


def test_dictionaries_of_lists_train() -> None:
    records = [{"input_ids": [1] * (i % 40), "labels": i % 4} for i in range(120)]
    model = MeanOfWords(True)
    batches = qg.PoissonBatches(records, rate=0.3, steps=3, pad_to=40)
    with qg.Privatizer(model, MECHANISM, batches) as private:
        for batch in batches:
            for micro_batch in batch.split(16):
                private.backward(plainly(model, (micro_batch["input_ids"], micro_batch["labels"])))
            private.release()
        assert private.independence.is_checked
