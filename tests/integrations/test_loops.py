"""Loops as people have them: each message is followed literally, and the run then trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import quietgrad as qg
from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer
from quietgrad.integrations.lightning import PrivateModule
from tests.integrations.tiny_text import Records, arguments, bert, pad


def data() -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 4, generator=rng), torch.randint(0, 2, (40,), generator=rng))


def test_unpacking_a_batch_hints_at_its_micro_batches() -> None:
    model, mechanism = nn.Linear(4, 2), qg.methods.dp_sgd().with_noise(1.0)
    unpacked: Any = qg.PoissonBatches(data(), rate=0.5, steps=2)
    with pytest.raises(TypeError, match=r"for x, y in batch\.split\(256\)"):
        for _x, _y in unpacked:
            pass
    batches = qg.PoissonBatches(data(), rate=0.5, steps=2)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for x, y in batch.split(256):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
        assert private.ledger.count == 2


def test_a_loader_that_accelerate_prepared_is_made_private() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data(), batch_size=8, shuffle=True)
    )
    assert loader.batch_size is None
    batches, private = qg.make_private(model, optimizer, loader, epochs=1, epsilon=4.0, delta=1e-3)
    assert (batches.rate, batches.steps) == (0.2, 5)
    with private:
        for batch in batches:
            for x, y in batch.split(8):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
        assert private.ledger.count == 5


def test_a_batch_sampler_of_ones_own_is_refused_and_the_remedy_works() -> None:
    class Mine(BatchSampler):
        pass

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = DataLoader(data(), batch_sampler=Mine(range(40), 8, False))
    with pytest.raises(ValueError, match=r"no batch size.*batch_size="):
        qg.make_private(model, optimizer, own, epochs=1, epsilon=4.0, delta=1e-3)
    batches, private = qg.make_private(
        model, optimizer, DataLoader(data(), batch_size=8), epochs=1, epsilon=4.0, delta=1e-3
    )
    private.close()
    assert batches.steps == 5


class Kept(PrivateModule):
    """With the training_step of a plain LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Renamed(PrivateModule):
    """As the message says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def losses(self, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layer(x), y, reduction="none")


def test_a_training_step_that_was_kept_is_refused_and_the_remedy_works() -> None:
    lightning = pytest.importorskip("lightning")

    def fit(module: PrivateModule) -> None:
        loader = module.make_private(data(), batch=8, epochs=1, epsilon=4.0, delta=1e-3)
        trainer = lightning.Trainer(
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            accelerator="cpu",
        )
        trainer.fit(module, loader)

    with pytest.raises(ValueError, match=r"Rename it to losses\(self, batch\)"):
        fit(Kept())
    renamed = Renamed()
    fit(renamed)
    assert renamed.private is not None
    assert renamed.private.ledger.count == 5


def test_more_epochs_on_resume_are_refused_in_words_and_the_remedies_work(tmp_path: Path) -> None:
    def trainer(folder: Path, steps: int, model: Any = None) -> Any:
        settings = arguments(folder, max_steps=steps, save_strategy="steps", save_steps=2)
        privacy = PrivacyArguments(8.0, 1e-3)
        return PrivateTrainer(
            model or bert(), settings, privacy=privacy, train_dataset=Records(40), data_collator=pad
        )

    first = trainer(tmp_path / "first", 2)
    first.train()
    with pytest.raises(
        qg.PrivacyError, match=r"made for 2 steps, now there are 4.*begin a new run"
    ) as caught:
        trainer(tmp_path / "first", 4).train(resume_from_checkpoint=True)
    assert "{" not in str(caught.value)
    assert trainer(tmp_path / "new", 4, first.model).train().global_step == 4
