"""A LightningModule trains privately, is checkpointed and resumed with its ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg
from quietgrad.integrations.lightning import PrivateModule, refuse_settings


def data(count: int = 60) -> TensorDataset:
    rng = torch.Generator().manual_seed(count)
    x = torch.randn(count, 4, generator=rng)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Classifier(PrivateModule):
    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 2)
        self.stop_at = stop_at

    def losses(self, batch: Any) -> Tensor:
        x, y = batch
        if self.private is not None and self.private.step == self.stop_at:
            raise StopError
        return F.cross_entropy(self.net(x), y, reduction="none")

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)]


class StopError(Exception):
    pass


def planned(module: Classifier, folder: Path, records: int = 60, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "batch": 20,
        "epochs": 3,
        "epsilon": 50.0,
        "delta": 1e-3,
        "ledger": folder / "ledger.jsonl",
        "micro_batch": 7,
    }
    return module.make_private(data(records), **(settings | options))


def trainer(folder: Path, **options: Any) -> Any:
    settings = {
        "max_epochs": 3, "default_root_dir": folder, "accelerator": "cpu", "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return lightning.Trainer(**(settings | options))


def test_it_trains_validates_and_holds_the_budget(tmp_path: Path) -> None:
    module = Classifier()
    run = trainer(tmp_path)
    # So many records that the noise hardly moves the accuracy: of 60 it came to 0.775 once in 60 runs.
    private = planned(module, tmp_path, records=600, batch=200, micro_batch=70)
    run.fit(module, private, DataLoader(data(400), batch_size=200))
    assert module.private is not None
    assert module.private.step == module.private.ledger.count == 9
    assert module.private.epsilon(1e-3) == pytest.approx(50.0, rel=0.02)
    assert float(run.callback_metrics["accuracy"]) > 0.8
    assert set(run.callback_metrics) == {"accuracy"}
    assert run.optimizers[0].param_groups[0]["lr"] == 0.25
    assert not module.net._forward_hooks


def test_a_run_is_resumed_with_its_ledger(tmp_path: Path) -> None:
    checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=tmp_path, filename="last", every_n_train_steps=4
    )
    stopped = Classifier(stop_at=4)
    with pytest.raises(StopError):
        trainer(tmp_path, callbacks=[checkpoint]).fit(stopped, planned(stopped, tmp_path))
    assert stopped.private is not None
    stopped.private.close()
    module = Classifier()
    trainer(tmp_path).fit(module, planned(module, tmp_path), ckpt_path=tmp_path / "last.ckpt")
    assert module.private is not None
    assert module.private.step == module.private.ledger.count == 9


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    module = Classifier()
    planned(module, tmp_path)
    with pytest.raises(qg.PrivacyError, match="not written by a private run"):
        module.on_load_checkpoint({})


def test_a_module_that_was_not_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make_private"):
        trainer(tmp_path).fit(Classifier(), DataLoader(data()))


@pytest.mark.parametrize(
    ("world", "precision", "named"), [(2, "32-true", "devices=2"), (1, "16-mixed", "bf16-mixed")]
)
def test_several_devices_and_scaled_losses_are_refused(world: int, precision: str, named: str) -> None:
    with pytest.raises(qg.PrivacyError, match=named):
        refuse_settings(SimpleNamespace(world_size=world, precision=precision))
    refuse_settings(SimpleNamespace(world_size=1, precision="bf16-mixed"))


class Centred(Classifier):
    def losses(self, batch: Any) -> Tensor:
        x, y = batch
        return super().losses((x - x.mean(0), y))


def test_a_module_that_mixes_records_is_refused(tmp_path: Path) -> None:
    module = Centred()
    loader = planned(module, tmp_path)
    with pytest.raises(qg.PrivacyError, match="depends on other records"):
        trainer(tmp_path).fit(module, loader)
