"""Training losses, token counts and batch sizes are in no log, file or progress bar of a private run."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer
from tests.integrations.recorded_output import counts, numbers, printed
from tests.integrations.tiny_text import Records, arguments, bert, pad

LOSS = 1234567.0
"""No planned number of the run, so that it is found wherever the loss is written."""

RECORDS, EXPECTED = 4000, 1200
"""So many that what is drawn of them is no number of the plan, of the model or of its files."""


class Recorded(NamedTuple):
    """What a run wrote, printed, logged and returned, and what it must not tell."""

    folder: Path
    screen: str
    logs: list[dict[str, Any]]
    output: Any
    private: set[float]


class Reporter(transformers.TrainerCallback):  # type: ignore[misc]
    """What reporters (TensorBoard, Weights & Biases) would be given."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


class Watched(PrivateTrainer):
    """Keeps what is private, for the test to look for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drawn: list[int] = []
        self.tokens: list[int] = []

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.drawn.append(len(inputs))
        self.tokens.append(0)
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_losses(self, model: Any, inputs: Any) -> Any:
        self.tokens[-1] += int(inputs["attention_mask"].sum())
        losses = super().compute_losses(model, inputs)
        return losses * 0 + LOSS + losses - losses.detach()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder, reporter, screen = tmp_path_factory.mktemp("run"), Reporter(), io.StringIO()
    run = Watched(
        bert(hidden_dropout_prob=0.1),
        arguments(folder, save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2,
                  skip_memory_metrics=False, per_device_train_batch_size=EXPECTED // 4, gradient_accumulation_steps=4),
        privacy=PrivacyArguments(epsilon=8.0, delta=1e-4),
        train_dataset=Records(RECORDS), eval_dataset=Records(6, seed=1), data_collator=pad, callbacks=[reporter],
    )  # fmt: skip
    with redirect_stdout(screen), redirect_stderr(screen):
        output = run.train()
        run.save_model()
        run.save_metrics("train", output.metrics)
        run.save_state()
    planned = {float(EXPECTED), float(RECORDS)}
    private = (counts(run.drawn) | counts(run.tokens)) - planned
    return Recorded(folder, screen.getvalue(), reporter.logs, output, private)


def test_no_number_of_a_run_counts_drawn_records_or_tokens(recorded: Recorded) -> None:
    assert len(recorded.private) >= 12
    others = {
        float(number)
        for entry in recorded.logs
        for key, number in entry.items()
        if not key.startswith("eval_")
    }
    assert not recorded.private & (numbers(recorded.folder) | printed(recorded.screen) | others)


def test_the_loss_is_on_no_screen_and_in_no_text(recorded: Recorded) -> None:
    folder, screen, logs, output, _ = recorded
    texts = [screen, repr(logs), repr(output.metrics)]
    texts += [
        file.read_text(errors="ignore")
        for file in folder.rglob("*")
        if file.suffix in (".json", ".jsonl", ".md")
    ]
    assert len(texts) > 6
    for text in texts:
        assert not re.search(r"1234567|1\.23456|1\.235e\+", text)
    assert "eval_loss" in screen
    assert output.training_loss != output.training_loss


def test_no_key_names_losses_tokens_batches_or_speed(recorded: Recorded) -> None:
    folder, screen, logs, output, _ = recorded
    keys = {key for entry in logs for key in entry} | set(output.metrics)
    for file in folder.rglob("trainer_state.json"):
        state = json.loads(file.read_text())
        keys |= {key for entry in state["log_history"] for key in entry}
        assert state["total_flos"] == 0
        assert state["num_input_tokens_seen"] == 0
    private = {key for key in keys if not key.startswith(("eval_", "test_"))}
    assert private == {"epoch", "step", "learning_rate", "grad_norm", "epsilon", "delta"}
    assert not re.search(r"'(loss|train_\w+|num_tokens|total_flos)'", screen)


def test_every_file_of_a_checkpoint_is_known_and_none_counts_draws(recorded: Recorded) -> None:
    folder = recorded.folder
    names = {file.name for file in folder.rglob("*") if file.is_file()}
    assert names <= {
        "config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "trainer_state.json",
        "privacy.pt", "ledger.jsonl", "all_results.json", "train_results.json",
    }  # fmt: skip
    assert "privacy.pt" in names
    # Generators move with each dropped-out token: their state would tell how many there were.
    assert not any("rng" in name for name in names)


def test_what_a_checkpoint_holds_follows_from_the_plan(recorded: Recorded) -> None:
    """Two runs with other draws leave files with the same numbers, but for noise: nothing counts rows or tokens."""
    saved = torch.load(next(recorded.folder.rglob("privacy.pt")), weights_only=True)
    assert set(saved) == {
        "step",
        "public_seed",
        "representations",
        "noise",
        "post",
        "ledger_head",
        "ledger_count",
        "protected",
        "mechanism",
    }
    assert saved["step"] == saved["ledger_count"]
    assert not saved["noise"]  # Gaussian noise has no state


def test_the_reason_is_given_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    from quietgrad.integrations.hugging_face.withheld import Withheld

    filtered = Withheld()
    transformers.utils.logging.enable_propagation()
    try:
        assert [filtered.released({"loss": 1.0, "learning_rate": 0.1}) for _ in range(2)] == [
            {"learning_rate": 0.1}
        ] * 2
    finally:
        transformers.utils.logging.disable_propagation()
    assert tmp_path.exists()
    recorded = [record for record in caplog.records if "no noise" in record.getMessage()]
    assert len(recorded) == 1
