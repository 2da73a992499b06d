"""The Trainer on every pattern: mixing is refused before the first release, nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg

pytest.importorskip("transformers")

from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer, private_trainer
from tests.independence.patterns import APART, MIXING, Pattern
from tests.integrations.tiny_text import arguments

ONE_IN = 12
"""Every twelfth pattern runs in each test run, all of them in slow ones: a Trainer takes a second to begin."""


class OfPattern(PrivateTrainer):
    """A Trainer whose losses are those of a pattern."""

    pattern: Pattern

    def compute_losses(self, model: nn.Module, inputs: Any) -> Tensor:
        return self.pattern.losses(model, inputs["batch"])


def run(pattern: Pattern, folder: Path) -> Any:
    torch.manual_seed(0)
    trainer = OfPattern(
        pattern.model(),
        arguments(
            folder,
            max_steps=2,
            per_device_train_batch_size=16,
            remove_unused_columns=False,
            logging_strategy="no",
        ),
        privacy=PrivacyArguments(epsilon=8.0, delta=1e-3, pad_to=pattern.pad_to),
        train_dataset=pattern.records(),
        data_collator=lambda records: {"batch": pattern.collate(records)},
    )
    trainer.pattern = pattern
    trainer.train()
    return trainer.private


@pytest.fixture(autouse=True)
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration is not what is tested."""
    monkeypatch.setattr(
        private_trainer, "calibrate", lambda *_, **__: qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    )


def some_slow(patterns: list[Pattern]) -> list[Any]:
    marks = [() if place % ONE_IN == 0 else (pytest.mark.slow,) for place in range(len(patterns))]
    return [
        pytest.param(pattern, id=str(pattern), marks=mark)
        for pattern, mark in zip(patterns, marks, strict=True)
    ]


@pytest.mark.parametrize("pattern", some_slow(MIXING))
def test_a_trainer_that_mixes_records_is_refused(pattern: Pattern, tmp_path: Path) -> None:
    with pytest.raises(qg.PrivacyError):
        run(pattern, tmp_path)


@pytest.mark.parametrize("pattern", some_slow(APART))
def test_a_trainer_that_keeps_records_apart_is_accepted(pattern: Pattern, tmp_path: Path) -> None:
    private = run(pattern, tmp_path)
    assert private.step == 2
    assert private.independence.is_checked
    assert private.covered
