"""Losses and sizes of draws are in no log, checkpoint, logger or progress bar of a private run in Lightning."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from quietgrad.integrations.lightning import PrivateModule
from tests.integrations.recorded_output import counts, numbers, printed

LOSS = 1234567.0
RECORDS, EXPECTED = 4000, 1200


class Watched(PrivateModule):
    """Keeps what is private, for the test to look for; its losses are a number that is easy to find."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.drawn: list[int] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.drawn.append(len(batch))

    def losses(self, batch: Any) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self.net(x), y, reduction="none")
        return LOSS + losses - losses.detach()

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


class Recorded(NamedTuple):
    folder: Path
    screen: str
    metrics: dict[str, Any]
    private: set[float]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder, screen = tmp_path_factory.mktemp("run"), io.StringIO()
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 4, generator=rng)
    records, held_out = TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:40], x[:40, 1].gt(0).long())
    module = Watched()
    with redirect_stdout(screen), redirect_stderr(screen):
        loader = module.make_private(
            records, batch=EXPECTED, epochs=2, epsilon=8.0, delta=1e-4, ledger=folder / "ledger.jsonl"
        )
        trainer = lightning.Trainer(
            max_epochs=2, default_root_dir=folder, accelerator="cpu", log_every_n_steps=1,
            logger=CSVLogger(folder, flush_logs_every_n_steps=1),
            callbacks=[ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1), LearningRateMonitor()],
        )  # fmt: skip
        trainer.fit(module, loader, DataLoader(held_out, batch_size=20))
    private = counts(module.drawn) - {float(EXPECTED), float(RECORDS)}
    return Recorded(folder, screen.getvalue(), dict(trainer.logged_metrics), private)


def test_no_number_of_a_run_counts_drawn_records_or_is_a_loss(recorded: Recorded) -> None:
    assert len(recorded.private) >= 8
    everything = (
        numbers(recorded.folder) | printed(recorded.screen) | {float(v) for v in recorded.metrics.values()}
    )
    assert LOSS not in everything
    assert not recorded.private & everything


def test_a_logger_gets_what_was_measured_on_other_data_and_the_plan(recorded: Recorded) -> None:
    assert "accuracy" in recorded.screen
    assert set(recorded.metrics) <= {"accuracy", "lr-SGD"}
    header = (recorded.folder / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    assert set(header.split(",")) == {"epoch", "step", "accuracy", "lr-SGD"}


def test_checkpoints_were_looked_into(recorded: Recorded) -> None:
    saved = [torch.load(file, weights_only=False) for file in recorded.folder.rglob("*.ckpt")]
    assert len(saved) >= 3
    for checkpoint in saved:
        assert set(checkpoint) <= {
            "epoch", "global_step", "pytorch-lightning_version", "state_dict", "loops", "callbacks",
            "optimizer_states", "lr_schedulers", "quietgrad", "hparams_name", "hyper_parameters",
        }  # fmt: skip
