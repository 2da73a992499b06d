"""The seed of the initial weights is published, and dropout masks and augmented views followed from it.

Row r of step t then meets a mask that everybody knows. Which masks the others met says how many rows were drawn before
them, in all steps so far, so that the draws are no secret: with one seed, a record that adds nothing moved the sum of
the seven others by 2.2 C. ε rests on nobody knowing who was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer
from quietgrad.integrations.lightning import PrivateModule
from quietgrad.lab.cli.app import app
from quietgrad.lab.run import federated, train
from tests.attacks.harness import clipped_sum
from tests.integrations.tiny_text import Records, arguments, bert, pad
from tests.lab.tiny import write_config

Numbers = list[list[float]]
"""The first random numbers of each of several runs."""


def note(seen: Numbers) -> None:
    """Look at what torch would draw next, and draw nothing."""
    state = torch.get_rng_state()
    seen.append(torch.rand(4).tolist())
    torch.set_rng_state(state)


def of_the_lab(folder: Path, seen: Numbers, patch: pytest.MonkeyPatch, command: str = "train") -> None:
    config = write_config(folder)
    step = train.Run.step

    def noted(run: train.Run, batch: Any) -> None:
        if run.private.step == 0:
            note(seen)
        step(run, batch)

    def locally(*_: Any, **__: Any) -> None:
        note(seen)

    patch.setattr(train.Run, "step", noted)
    patch.setattr(federated, "train_locally", locally)
    for run in range(2):
        several = ("--set", "federated.clients=12", "--set", "training.batch=12")
        changes = several if command == "federated" else ()
        app([command, str(config), "--out", str(folder / f"run{run}"), *changes], standalone_mode=False)


def of_federated_clients(folder: Path, seen: Numbers, patch: pytest.MonkeyPatch) -> None:
    found: Numbers = []
    of_the_lab(folder, found, patch, "federated")
    seen += [found[0], found[len(found) // 2]]


def of_the_trainer(folder: Path, seen: Numbers, _: pytest.MonkeyPatch) -> None:
    class Noted(PrivateTrainer):
        def training_step(self, *given: Any, **how: Any) -> Any:
            if self.private is not None and self.private.step == 0:
                note(seen)
            return super().training_step(*given, **how)

    for run in range(2):
        Noted(
            bert(hidden_dropout_prob=0.1),
            arguments(folder / f"run{run}", max_steps=1, seed=42),
            privacy=PrivacyArguments(epsilon=8.0, delta=1e-4),
            train_dataset=Records(64),
            data_collator=pad,
        ).train()


def of_lightning(folder: Path, seen: Numbers, _: pytest.MonkeyPatch) -> None:
    class Noted(PrivateModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def losses(self, batch: Any) -> Tensor:
            if self.private is not None and self.private.step == 0:
                note(seen)
            return F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for run in range(2):
        lightning.seed_everything(7)
        module, x, found = Noted(), torch.randn(40, 4), len(seen)
        loader = module.make_private(
            TensorDataset(x, (x[:, 0] > 0).long()),
            batch=20,
            epochs=1,
            epsilon=8.0,
            delta=1e-4,
            ledger=folder / f"{run}.jsonl",
        )
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(module, loader)
        del seen[found + 1 :]


@pytest.mark.parametrize("train_twice", [of_the_lab, of_federated_clients, of_the_trainer, of_lightning])
def test_the_published_seed_does_not_tell_masks_and_views(
    train_twice: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Numbers = []
    train_twice(tmp_path, seen, monkeypatch)
    assert len(seen) == 2
    assert seen[0] != seen[1]


def test_with_a_known_seed_a_record_that_adds_nothing_moves_the_others() -> None:
    """What the seed would tell, in a loop of one's own: why docs/own_loop.md says to renew the generators."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    x[2] = 0

    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(16, 16)

    def losses(model: nn.Module, rows: Tensor) -> Tensor:
        return F.dropout(model(rows), 0.5).square().sum(1) * (rows[:, 0] != 0)

    def total(rows: list[int]) -> Tensor:
        return clipped_sum(build, TensorDataset(x), rows, losses)

    moved = total(list(range(8))) - total([row for row in range(8) if row != 2])
    assert float(moved.norm()) > 2
