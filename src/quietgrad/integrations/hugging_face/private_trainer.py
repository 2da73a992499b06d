"""Hugging Face's Trainer with private gradients.

Its loop, optimizers, schedulers, callbacks and checkpoints stay.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import Subset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from quietgrad._errors import PrivacyError
from quietgrad._kernels.generators import renew_generators
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._privatizer.sharding import unwrap
from quietgrad._sampling.batch import Batch
from quietgrad.accounting.calibrate import calibrate
from quietgrad.distributed.all_reduce import AllReduce
from quietgrad.distributed.weights import copy_weights
from quietgrad.integrations.epochs import Epochs
from quietgrad.integrations.hugging_face.example_losses import example_losses
from quietgrad.integrations.hugging_face.fixed_length import pad_to_one_length
from quietgrad.integrations.hugging_face.loss_kind import is_sequence_to_sequence, loss_kind
from quietgrad.integrations.hugging_face.privacy_arguments import PrivacyArguments
from quietgrad.integrations.hugging_face.refused_arguments import (
    refuse_arguments,
    refuse_collator,
    refuse_plugins,
    refuse_records,
)
from quietgrad.integrations.hugging_face.unfit_records import refuse_long, refuse_unfit
from quietgrad.integrations.hugging_face.withheld import Withheld
from quietgrad.methods.dp_sgd import dp_sgd

STATE = "privacy.pt"
LEDGER = "ledger.jsonl"

_Host: Any = object
"""The Trainer that stands beside it."""


class PrivateTraining(_Host):  # type: ignore[misc]
    """Make a Trainer private, as its first base class.

    `class Mine(PrivateTraining, TheirTrainer)`

    One optimizer step is one Poisson draw of on average per_device_train_batch_size · gradient_accumulation_steps
    records for each process, which go through the collator and the model in micro-batches of
    per_device_train_batch_size. Under `accelerate launch` or torchrun all processes make one release a step.

    Formal guarantee: the trained weights, the files in the output folder and what is logged are (ε, δ)-private for each
    record of train_dataset. Evaluation data, tokenizer and initial weights are taken to be public.

    Attributes:
        private: the Privatizer while `train()` runs and after it: `trainer.private.epsilon(delta)`.
    """

    private: Privatizer | None = None
    _loss_kind: str | None = None
    """What the model's labels mean; found before the first draw."""

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *rest: Any,
        privacy: PrivacyArguments,
        **options: Any,
    ) -> None:
        args = copy.copy(args or TrainingArguments("trainer_output"))
        refuse_arguments(args)
        self.privacy = privacy
        accumulated = args.per_device_train_batch_size * args.gradient_accumulation_steps
        # The loop sees whole draws; micro-batches are taken of them in training_step.
        args.gradient_accumulation_steps = 1
        # A resumed run draws afresh: there is nothing to skip.
        args.ignore_data_skip = True
        self._withheld = Withheld()
        # By name where possible: some trainers have another argument in between.
        before, named = ((args, *rest), {}) if rest else ((), {"args": args})
        super().__init__(model, *before, **named, **options)
        self._expected_batch = accumulated * self.accelerator.num_processes
        refuse_plugins(self.accelerator.distributed_type.value, self.accelerator.num_processes)
        refuse_records(self.train_dataset)
        refuse_collator(self.data_collator)
        self._refuse_overridden_loss()

    # ---- one step -------------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Run all micro-batches of a draw, then release.

        The loss that it returns is zero: the true one is private.
        """
        assert self.private is not None
        model = unwrap(model, warn=False)  # of several processes: accelerate has wrapped it
        model.train()
        if hasattr(self.optimizer, "train") and callable(self.optimizer.train):
            self.optimizer.train()  # schedule-free ones have two modes
        for micro_batch in inputs.split(self.args.per_device_train_batch_size):
            with self.compute_loss_context_manager():
                losses = self.compute_losses(model, self._prepare_inputs(micro_batch))
            self.private.backward(losses)
        self.private.release()
        return torch.zeros((), device=self.args.device)

    def compute_losses(self, model: nn.Module, inputs: MutableMapping[str, Any]) -> Float[Tensor, " n"]:
        """Return one loss per example; override it for a loss of your own."""
        self._refuse_inputs(inputs)
        labels = inputs.pop("labels", None)
        # A decoder of its own reads the labels before the one it predicts; what loss the model makes of them is unused.
        read = {"labels": labels} if is_sequence_to_sequence(self._unwrapped()) else {}
        outputs = model(**inputs, **read)
        if self.compute_loss_func is not None:
            own: Tensor = self.compute_loss_func(outputs, labels, num_items_in_batch=None)
            return own
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        return example_losses(logits, labels, self._loss_kind, smoothing=self.args.label_smoothing_factor)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], None]:
        """Return the next draw; its tokens are not counted."""
        return list(_next(epoch_iterator)), None

    # ---- set up, checkpoint, resume -------------------------------------------------------------------------

    def get_train_dataloader(self) -> Epochs:
        """Return Poisson draws, after a check that all records fit the model."""
        dataset = self.train_dataset
        collator, padding = pad_to_one_length(
            self.data_collator, self.privacy.pad_to, self.processing_class, self._unwrapped()
        )
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        refuse_unfit(dataset, collator, self._unwrapped())
        self._loss_kind = loss_kind(self._unwrapped())
        self._epochs = Epochs(
            dataset,
            batch=self._expected_batch,
            epochs=self.args.num_train_epochs,
            max_steps=self.args.max_steps,
            workers=self.args.dataloader_num_workers,
            collate_fn=collator,
        )
        self._epochs.batches.padding = padding
        return self._epochs

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        expected: int = self._expected_batch
        return expected

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Epochs, resume_from_checkpoint: str | None
    ) -> Any:
        self.private = self._privatizer(train_dataloader, resumes=resume_from_checkpoint is not None)
        renew_generators()  # args.seed is known, 42 where nobody chose one
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _privatizer(self, epochs: Epochs, *, resumes: bool) -> Privatizer:
        method = dp_sgd(clip=1.0) if self.privacy.method is None else self.privacy.method
        ledger = Path(self.privacy.ledger or Path(self.args.output_dir) / LEDGER)
        if ledger.exists() and not resumes:
            raise PrivacyError(
                f"{ledger} holds the releases of an earlier run. Call train(resume_from_checkpoint=True) to go on with "
                "it, or choose another output_dir for a run of its own."
            )
        ledger.parent.mkdir(parents=True, exist_ok=True)
        mechanism = calibrate(method, epochs.batches, epsilon=self.privacy.epsilon, delta=self.privacy.delta)
        reducer = None
        if self.accelerator.num_processes > 1:
            # A new head is random on every rank; accelerate's wrapper would do the same, but later.
            copy_weights(self.model)
            reducer = AllReduce()
        return Privatizer(
            self.model,
            mechanism,
            epochs.batches,
            ledger=ledger,
            memory_budget=self.privacy.memory_budget,
            reducer=reducer,
        )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.private is not None
        if self.args.should_save:
            torch.save(self.private.state_dict(), os.path.join(output_dir, STATE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = os.path.join(checkpoint, STATE)
        if not os.path.isfile(path):
            raise PrivacyError(
                f"{checkpoint} holds no {STATE}: it was not written by a private run (or with save_only_model). Resume "
                "from a checkpoint of this run, or begin a new one from its weights."
            )
        assert self.private is not None
        self.private.load_state_dict(torch.load(path, weights_only=True))
        self._epochs.skip_to(self.private.step)

    def _save_rng_state(self, output_dir: str) -> None:
        """Keep nothing: how far dropout's generator went tells how many tokens were drawn."""

    def train(self, *args: Any, **options: Any) -> TrainOutput:
        """Train as the Trainer does; the result's training loss is NaN, not released."""
        try:
            output = super().train(*args, **options)
            assert self.private is not None
            spent = {"epsilon": self.private.epsilon(self.privacy.delta), "delta": self.privacy.delta}
            return TrainOutput(
                output.global_step, float("nan"), self._withheld.released(output.metrics) | spent
            )
        finally:
            if self.private is not None:
                self.private.close()

    # ---- what is shown --------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log released quantities only, to files, progress bars and every reporter."""
        released = self._withheld.released(logs)
        if released:
            super().log(released, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Count none: they are proportional to the drawn tokens."""
        return 0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count no tokens."""

    def evaluate(self, eval_dataset: Any = None, *args: Any, **options: Any) -> dict[str, float]:
        """As of the Trainer, on data that are not the private records."""
        self._refuse_training_records(self.eval_dataset if eval_dataset is None else eval_dataset)
        metrics: dict[str, float] = super().evaluate(eval_dataset, *args, **options)
        return metrics

    def predict(self, test_dataset: Any, *args: Any, **options: Any) -> Any:
        """As of the Trainer, on data that are not the private records."""
        self._refuse_training_records(test_dataset)
        return super().predict(test_dataset, *args, **options)

    def hyperparameter_search(self, *args: Any, **options: Any) -> Any:
        """Refuse: every try would cost its own ε."""
        raise PrivacyError(
            "hyperparameter_search trains on the private records once per try, and each try costs its own ε. Search "
            "with a plain Trainer on public data, then train once with PrivateTrainer."
        )

    # ---- refusals -------------------------------------------------------------------------------------------

    def _refuse_training_records(self, data: Any) -> None:
        for part in data.values() if isinstance(data, dict) else [data]:
            while isinstance(part, Subset):
                part = part.dataset
            if part is self.train_dataset:
                raise PrivacyError(
                    "Metrics on train_dataset are computed from private records, and no noise covers them. Evaluate on "
                    "records that were held out."
                )

    def _refuse_overridden_loss(self) -> None:
        """Refuse a mean of the user's own, unless the losses of single examples are given as well."""
        if type(self).compute_losses is not PrivateTraining.compute_losses:
            return
        for kind in type(self).__mro__:
            if kind.__module__.split(".")[0] != "transformers" and "compute_loss" in vars(kind):
                raise PrivacyError(
                    f"{kind.__name__} overrides compute_loss, whose mean over the batch hides the losses of single "
                    "examples. Override compute_losses(model, inputs) to return one loss per example: a vector [n]."
                )

    def _refuse_inputs(self, inputs: Mapping[str, Any]) -> None:
        if inputs.get("labels") is None and self.compute_loss_func is None:
            raise ValueError(
                f"The batch has no labels, only {', '.join(inputs)}. Name the column 'labels', or override "
                "compute_losses(model, inputs) to return one loss per example: a vector [n]."
            )
        refuse_long(inputs, self._unwrapped())

    def _unwrapped(self) -> nn.Module:
        """Return the model of transformers, also inside one of peft."""
        model = self.accelerator.unwrap_model(self.model)
        inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
        return inner


class PrivateTrainer(PrivateTraining, Trainer):  # type: ignore[misc]
    """`transformers.Trainer` with private gradients.

    Args:
        privacy: budget and method; everything else is a Trainer's.

    Example:
        trainer = PrivateTrainer(model, args, privacy=PrivacyArguments(epsilon=8.0, delta=1e-5), train_dataset=records)
        trainer.train()
        print(trainer.private.epsilon(1e-5))
    """


def _next(iterator: Iterator[Batch]) -> Iterator[Batch]:
    for batch in iterator:
        yield batch
        return
