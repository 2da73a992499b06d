"""Private training in Lightning, checkpointed with its ledger.

class Classifier(PrivateModule):
    def losses(self, batch): ...            # one loss per example

    def configure_optimizers(self): ...

module = Classifier(...)
loader = module.make_private(train_set, batch=256, epochs=5, epsilon=3.0, delta=1e-5)
lightning.Trainer(max_epochs=5).fit(module, loader)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.utils.data import default_collate

from quietgrad._errors import PrivacyError
from quietgrad._kernels.generators import renew_generators
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._sampling.batch import Batch
from quietgrad._sampling.collate import MapStyle
from quietgrad._sampling.padding import PadTo
from quietgrad.accounting.calibrate import calibrate
from quietgrad.integrations.epochs import Epochs
from quietgrad.methods.dp_sgd import dp_sgd

try:
    from lightning import LightningModule
except ImportError as error:
    raise ImportError(
        "quietgrad.integrations.lightning needs lightning: pip install 'quietgrad[lightning]'."
    ) from error

__all__ = ["PrivateModule"]

STATE = "quietgrad"


class PrivateModule(LightningModule):  # type: ignore[misc]
    """A LightningModule whose gradients are private.

    Implement `losses` and `configure_optimizers`.

    Formal guarantee: as of `qg.Privatizer`. Nothing of the private batches is logged; a module that calls
    `self.log` with a training loss breaks it.

    Attributes:
        private: the Privatizer, after `make_private`.
        micro_batch: examples that go through the model at once.

    Example:
        module = Classifier()
        loader = module.make_private(records, batch=64, epochs=2, epsilon=3.0, delta=1e-5)
    """

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.private: Privatizer | None = None
        self.micro_batch = 256

    def losses(self, batch: Any) -> Float[Tensor, " n"]:
        """Return one loss per example of a micro-batch, as the collator made it."""
        raise NotImplementedError

    def make_private(
        self,
        dataset: MapStyle,
        *,
        batch: int,
        epochs: float,
        epsilon: float,
        delta: float,
        method: Mechanism | None = None,
        ledger: str | Path | None = None,
        micro_batch: int = 256,
        workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        pad_to: PadTo | None = None,
        **options: Any,
    ) -> Epochs:
        """Plan the training and calibrate its noise.

        Pass what it returns to `Trainer.fit` as the train loader.

        Args:
            dataset: map-style; the private records.
            batch: expected records of a step.
            epochs: expected passes over the data.
            epsilon: of the whole training.
            delta: below 1 / records.
            method: any mechanism of `qg.methods`, `dp_sgd(clip=1.0)` if left out.
            ledger: file of the releases; needed to resume.
            micro_batch: examples that go through the model at once.
            workers: processes that load records ahead.
            collate_fn: makes a micro-batch of a list of records.
            pad_to: length to which records are padded or cut, as of `qg.PoissonBatches`.
            options: of the Privatizer.

        Raises:
            ValueError: this module has been made private already.
        """
        if self.private is not None:
            raise ValueError("This module is private already. Make a new module for another run.")
        self.micro_batch = micro_batch
        self._epochs = Epochs(
            dataset,
            batch=batch,
            epochs=epochs,
            max_steps=-1,
            workers=workers,
            collate_fn=collate_fn,
            pad_to=pad_to,
        )
        batches = self._epochs.batches
        mechanism = calibrate(
            dp_sgd(clip=1.0) if method is None else method, batches, epsilon=epsilon, delta=delta
        )
        self.private = Privatizer(self, mechanism, batches, ledger=ledger, **options)
        return self._epochs

    # ---- Lightning's loop -----------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Check the settings before the first step.

        Raises:
            PrivacyError: the Trainer's settings do not suit a private run.
        """
        if self.private is None:
            raise ValueError("Call module.make_private(dataset, …) first and fit with the loader it returns.")
        if type(self).training_step is not PrivateModule.training_step:
            raise ValueError(
                f"{type(self).__name__} keeps a training_step of its own, which would be given a whole Poisson draw. "
                "Rename it to losses(self, batch), return one loss per example (reduction='none') instead of their "
                "mean, and leave out self.log of training losses."
            )
        refuse_settings(self.trainer)
        renew_generators()  # the seed of seed_everything is known

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Run all micro-batches of a draw, the release and the optimizer's step."""
        assert self.private is not None
        for micro_batch in batch.split(self.micro_batch):
            moved = self.trainer.strategy.batch_to_device(micro_batch)
            with self.trainer.precision_plugin.forward_context():
                losses = self.losses(moved)
            self.private.backward(losses)
        self.private.release()
        for optimizer in _listed(self.optimizers()):
            optimizer.step()
        for scheduler in _listed(self.lr_schedulers()):
            scheduler.step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the ledger's head and what representations remember with the weights."""
        if self.private is not None:
            checkpoint[STATE] = self.private.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the ledger; draws and noise are fresh.

        Raises:
            PrivacyError: the checkpoint is not of a private run, or of another one.
        """
        if self.private is None:
            return
        if STATE not in checkpoint:
            raise PrivacyError(
                "The checkpoint was not written by a private run. Resume from one of this run."
            )
        self.private.load_state_dict(checkpoint[STATE])
        self._epochs.skip_to(self.private.step)

    def on_fit_end(self) -> None:
        """Leave the model exactly as it was; `private.epsilon` goes on to answer."""
        if self.private is not None:
            self.private.close()


def refuse_settings(trainer: Any) -> None:
    """Refuse settings of a lightning.Trainer under which ε would not hold.

    Raises:
        PrivacyError: it has one of them.
    """
    if trainer.world_size > 1:
        raise PrivacyError(
            f"Trainer(devices={trainer.world_size}) is refused: PrivateModule trains in one process. Take devices=1, "
            "or qg.Privatizer with reducer=qg.distributed.AllReduce() in a loop of your own."
        )
    if "16-mixed" in str(trainer.precision) and "bf16" not in str(trainer.precision):
        raise PrivacyError(
            "Trainer(precision='16-mixed') is refused: its scaler moves the clip. Take 'bf16-mixed'."
        )


def _listed(found: Any) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]
