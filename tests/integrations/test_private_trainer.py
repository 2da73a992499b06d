"""PrivateTrainer trains what the Trainer trains, privately, with its optimizers, checkpoints and evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.integrations.hugging_face import (
    PrivacyArguments,
    PrivateTrainer,
    example_losses,
    private_trainer,
)
from quietgrad.integrations.hugging_face.unfit_records import refuse_unfit
from tests.integrations.tiny_text import Records, arguments, bert, llama, pad
from tests.integrations.tokens import tokenizer

PRIVACY = PrivacyArguments(epsilon=8.0, delta=1e-3)


def trainer(folder: Path, model: nn.Module | None = None, **options: Any) -> Any:
    settings = {"privacy": PRIVACY, "train_dataset": Records(40), "data_collator": pad}
    own = {
        key: options.pop(key)
        for key in [*settings, "eval_dataset", "compute_metrics", "compute_loss_func"]
        if key in options
    }
    kind = options.pop("kind", PrivateTrainer)
    return kind(model or bert(), arguments(folder, **options), **(settings | own))


def test_it_trains_and_holds_the_budget(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    before = [p.clone() for p in run.model.parameters()]
    output = run.train()
    assert output.global_step == 4
    assert run.private.ledger.count == 4
    assert output.metrics["epsilon"] <= 8.0
    assert output.metrics["epsilon"] == pytest.approx(8.0, rel=0.02)
    assert any(not torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))


def test_accumulation_is_the_expected_batch_and_device_batches_are_its_parts(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    rows: list[int] = []
    plain = run.compute_losses

    def counted(model: nn.Module, inputs: Any) -> Any:
        rows.append(len(inputs["input_ids"]))
        return plain(model, inputs)

    run.compute_losses = counted
    run.train()
    assert run.private.sampler.rate == 8 / 40
    assert max(rows) == 4


def test_a_release_is_the_sum_of_the_gradients_of_single_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        private_trainer, "calibrate", lambda *_, **__: qg.methods.dp_sgd(clip=1e6).with_noise(0.0)
    )
    settings = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    run = trainer(tmp_path, bert().double(), max_steps=1, gradient_accumulation_steps=10, **settings)
    before = {name: p.clone() for name, p in run.model.named_parameters()}
    alone = bert().double()
    records = Records(40)
    for index in range(40):
        (alone(**pad([records[index]])).loss / 40).backward()
    run.train()
    gradients = {name: p.grad for name, p in alone.named_parameters()}
    for name, p in run.model.named_parameters():
        torch.testing.assert_close(before[name] - p, gradients[name])


@pytest.mark.parametrize("which", ["masked", "causal", "regression", "multi_label"])
def test_the_heads_users_have_train(tmp_path: Path, which: str) -> None:
    model, data = {
        "masked": lambda: (bert("BertForMaskedLM"), Records(40, tokens=True)),
        "causal": lambda: (llama(), Records(40, tokens=True)),
        "regression": lambda: (bert(num_labels=1), _Relabelled(0.5)),
        "multi_label": lambda: (bert(), _Relabelled([1.0, 0.0, 1.0])),
    }[which]()
    assert trainer(tmp_path, model, train_dataset=data, max_steps=2).train().global_step == 2


@pytest.mark.parametrize(
    "options",
    [
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"label_smoothing_factor": 0.1, "max_grad_norm": 0.5, "weight_decay": 0.01},
        {"optim": "adafactor", "warmup_steps": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_else_a_trainer_offers_goes_on_working(tmp_path: Path, options: dict[str, Any]) -> None:
    run = trainer(tmp_path, max_steps=2, **options)
    assert run.train().global_step == run.private.ledger.count == 2
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_a_loss_of_ones_own_is_used_for_training_and_evaluation(tmp_path: Path) -> None:
    def own(outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.logits, labels, reduction="none")

    run = trainer(tmp_path, max_steps=2, compute_loss_func=own, eval_dataset=Records(6, seed=1))
    assert run.train().global_step == 2
    assert math.isfinite(run.evaluate()["eval_loss"])


class _Relabelled(Records):
    def __init__(self, label: Any) -> None:
        super().__init__(40)
        self.label = label

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "labels": torch.tensor(self.label).tolist()}


def test_frequent_empty_draws_are_released_too(tmp_path: Path) -> None:
    run = trainer(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=1, max_steps=6)
    assert run.train().global_step == 6
    assert run.private.ledger.count == 6


def test_schedulers_and_optimizers_are_the_trainers(tmp_path: Path) -> None:
    run = trainer(tmp_path, optim="sgd", lr_scheduler_type="cosine", num_train_epochs=2.0, max_steps=-1)
    run.train()
    assert run.state.global_step == 10
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 2 * rates[-1]


def test_evaluation_is_on_other_data_and_logged(tmp_path: Path) -> None:
    def accuracy(predicted: Any) -> dict[str, float]:
        return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}

    run = trainer(
        tmp_path,
        eval_dataset=Records(12, seed=1),
        compute_metrics=accuracy,
        eval_strategy="steps",
        eval_steps=2,
    )
    run.train()
    seen = [entry for entry in run.state.log_history if "eval_accuracy" in entry]
    assert len(seen) == 2
    assert all(math.isfinite(entry["eval_loss"]) for entry in seen)


def test_a_run_is_resumed_with_its_ledger(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class Stopped(PrivateTrainer):
        def training_step(self, *args: Any) -> Any:
            if self.state.global_step == 3:
                raise StopError
            return super().training_step(*args)

    with pytest.raises(StopError):
        trainer(tmp_path, kind=Stopped, save_strategy="steps", save_steps=2, max_steps=6).train()
    run = trainer(tmp_path, save_strategy="steps", save_steps=2, max_steps=6)
    with pytest.raises(ValueError, match="plan"):  # step 3 was released before the crash and counts
        run.train(resume_from_checkpoint=True)
    assert run.private.ledger.count == 6
    assert run.private.epsilon(1e-3, spent=True) == pytest.approx(run.private.epsilon(1e-3))


def test_a_run_that_was_stopped_at_a_checkpoint_goes_on_to_its_end(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class Stopped(PrivateTrainer):
        def training_step(self, *args: Any) -> Any:
            if self.state.global_step == 3:
                raise StopError
            return super().training_step(*args)

    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": 7}
    with pytest.raises(StopError):
        trainer(tmp_path, kind=Stopped, **settings).train()
    run = trainer(tmp_path, **settings)
    assert run.train(resume_from_checkpoint=True).global_step == 7
    assert run.private.ledger.count == 7
    assert run.state.epoch == pytest.approx(1.4, abs=0.7)


def test_another_budget_on_resume_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    other = trainer(tmp_path, privacy=PrivacyArguments(epsilon=3.0, delta=1e-3))
    with pytest.raises(ValueError, match=r"ledger|plan"):
        other.train(resume_from_checkpoint=True)


def test_a_second_run_on_the_ledger_of_the_first_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    with pytest.raises(qg.PrivacyError, match="earlier run"):
        trainer(tmp_path).train()


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.train()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.model.modules())


def test_rgp_and_lora_train_through_it(tmp_path: Path) -> None:
    run = trainer(tmp_path / "rgp", privacy=PrivacyArguments(8.0, 1e-3, qg.methods.rgp(rank=2)))
    assert run.train().global_step == 4
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        bert(), peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    )
    frozen = {name: p.clone() for name, p in adapted.named_parameters() if not p.requires_grad}
    run = trainer(tmp_path / "lora", adapted)
    run.train()
    assert set(run.private.parameters) == {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert all(torch.equal(frozen[name], p) for name, p in adapted.named_parameters() if name in frozen)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "group_by_length"),
        ({"train_sampling_strategy": "sequential"}, "sequential"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"optim": "lomo"}, "steps inside"),
        ({"optim": "galore_adamw_layerwise", "optim_target_modules": ["query"]}, "steps inside"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
        ({"neftune_noise_alpha": 5.0}, "neftune"),
        ({"torch_compile": True}, "torch_compile"),
        ({"debug": "underflow_overflow"}, "activations"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments_that_break_the_guarantee_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        trainer(tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("fp16", True), ("use_liger_kernel", True), ("deepspeed", {"zero": 3}), ("fsdp", ["full_shard"])],
)
def test_what_this_machine_could_not_even_set_up_is_refused_by_name_too(
    tmp_path: Path, name: str, value: Any
) -> None:
    settings = arguments(tmp_path)
    setattr(settings, name, value)
    with pytest.raises(qg.PrivacyError, match=rf"TrainingArguments\({name}\) is refused"):
        PrivateTrainer(bert(), settings, privacy=PRIVACY, train_dataset=Records(8))


def test_processes_that_do_not_know_of_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = arguments(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(qg.PrivacyError, match="2 processes"):
        PrivateTrainer(bert(), settings, privacy=PRIVACY, train_dataset=Records(8))


def test_metrics_on_training_records_are_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    for data in (
        run.train_dataset,
        {"seen": run.train_dataset},
        torch.utils.data.Subset(run.train_dataset, [0]),
    ):
        with pytest.raises(qg.PrivacyError, match="held out"):
            run.evaluate(data)
    with pytest.raises(qg.PrivacyError, match="held out"):
        run.predict(run.train_dataset)
    with pytest.raises(qg.PrivacyError, match="each try"):
        run.hyperparameter_search()


def test_an_overridden_mean_loss_is_refused(tmp_path: Path) -> None:
    class Mine(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            return model(**inputs).loss

    with pytest.raises(qg.PrivacyError, match="compute_losses"):
        trainer(tmp_path, kind=Mine)


def test_bad_records_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not among 0 to 2") as caught:
        trainer(tmp_path / "labels", train_dataset=_Relabelled(7)).train()
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="more tokens than the 4") as caught:
        trainer(tmp_path / "length", bert(max_position_embeddings=4)).train()
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no labels"):
        trainer(tmp_path / "none", train_dataset=_Unlabelled(40)).train()
    with pytest.raises(ValueError, match="map-style"):
        trainer(tmp_path / "stream", train_dataset=iter([]))


@pytest.mark.parametrize("fault", [{"labels": 7}, {"input_ids": [1] * 17}], ids=["label", "length"])
def test_one_bad_record_is_found_before_anything_is_drawn(tmp_path: Path, fault: dict[str, Any]) -> None:
    """Else a run that stops tells that this record was drawn, and stops after hours."""

    class OneBad(Records):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return super().__getitem__(index) | (fault if index == 39 else {})

    run = trainer(tmp_path, train_dataset=OneBad(40))
    with pytest.raises(ValueError, match=r"not among 0 to 2|more tokens than the 16"):
        run.train()
    assert run.private is None
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"input_ids": [1, 2, 713]}, "input_ids are not among 0 to 23"),
        ({"input_ids": [-1]}, "input_ids are not among"),
        ({"labels": 1.0}, "no whole numbers"),
        ({"token_type_ids": [0]}, "other entries"),
    ],
    ids=["token", "negative token", "fraction", "entry"],
)
@pytest.mark.parametrize("count", [40, 257], ids=["together", "alone in the last part"])
def test_a_record_that_changes_its_batch_is_found_before_anything_is_drawn(
    fault: dict[str, Any], said: str, count: int
) -> None:
    """One fraction among the labels gave the whole micro-batch another loss; one odd token stopped its step."""
    from transformers import default_data_collator

    records = [{"input_ids": [1, 2, 3], "labels": index % 3} for index in range(count)]
    records[-1] = records[-1] | fault
    collator = default_data_collator if "token_type_ids" in fault else pad
    with pytest.raises(ValueError, match=said) as caught:
        refuse_unfit(records, collator, bert())
    assert "713" not in str(caught.value)


def test_a_record_of_another_shape_is_found_though_it_is_alone_in_its_part() -> None:
    from transformers import default_data_collator

    records: list[dict[str, Any]] = [{"input_ids": [1, 2, 3], "labels": 0} for _ in range(257)]
    records[-1]["input_ids"] = [1, 2]
    with pytest.raises(ValueError, match="expected sequence of length 3"):
        refuse_unfit(records, default_data_collator, bert())


def test_an_odd_label_in_a_step_counts_as_nothing() -> None:
    """A data set that transforms its records anew may have one after the check."""
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 2**40, -7, 2])
    losses = example_losses(logits, labels, "ForSequenceClassification")
    kept = example_losses(logits[[0, 3]], labels[[0, 3]], "ForSequenceClassification")
    assert torch.equal(losses[[0, 3]], kept)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient[[1, 2]].abs().sum() == 0


def test_targets_for_each_class_have_one_loss_whatever_their_type() -> None:
    logits, labels = torch.randn(2, 3), torch.tensor([[0, 1, 1], [1, 0, 0]])
    kind = "ForSequenceClassification"
    assert torch.equal(example_losses(logits, labels, kind), example_losses(logits, labels.float(), kind))


class _Unlabelled(Records):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index]}


def test_privacy_arguments_come_from_a_command_line() -> None:
    import transformers

    (parsed,) = transformers.HfArgumentParser(PrivacyArguments).parse_args_into_dataclasses(
        ["--epsilon", "3", "--delta", "1e-5"]
    )
    assert (parsed.epsilon, parsed.delta, parsed.method) == (3.0, 1e-5, None)
    assert json.dumps(parsed.epsilon) == "3.0"


def test_collators_of_transformers_pad_to_one_length(tmp_path: Path) -> None:
    import transformers

    words = tokenizer()
    widths: set[int] = set()

    class Watched(PrivateTrainer):
        def compute_losses(self, model: nn.Module, inputs: Any) -> Any:
            widths.add(inputs["input_ids"].shape[1])
            return super().compute_losses(model, inputs)

    for pad_to, collator, said in (
        (None, transformers.DataCollatorWithPadding(words), 16),  # what the model takes
        (None, transformers.DataCollatorWithPadding(words, max_length=12), 12),
        (6, transformers.DataCollatorWithPadding(words), 6),  # some records are longer
    ):
        widths.clear()
        privacy = PrivacyArguments(8.0, 1e-3, pad_to=pad_to)
        run = trainer(
            tmp_path / f"{pad_to}{said}", kind=Watched, privacy=privacy, data_collator=collator, max_steps=2
        )
        run.train()
        assert widths == {said}
        assert f"the length {said}" in run.private.explain().padding
    language = transformers.DataCollatorForLanguageModeling(words, mlm=False)
    privacy = PrivacyArguments(8.0, 1e-3, pad_to=10)
    widths.clear()
    trainer(
        tmp_path / "language", llama(), kind=Watched, privacy=privacy, data_collator=language, max_steps=2
    ).train()
    assert widths == {10}


def test_lengths_that_follow_the_draw_are_refused_or_named(tmp_path: Path) -> None:
    import transformers

    def longest(records: list[dict[str, Any]]) -> Any:
        return transformers.DataCollatorWithPadding(tokenizer())(records)

    def long_bert() -> nn.Module:
        return bert(max_position_embeddings=64)

    uneven = Records(40)
    # No two records have one length, so the halves of a micro-batch never have the same longest one.
    uneven.rows = [[1 + index % 20] * (3 + index) for index in range(40)]
    wide: dict[str, Any] = {
        "train_dataset": uneven,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "max_steps": 8,
    }
    with pytest.raises(qg.PrivacyError, match="pad_to='longest'"):
        trainer(tmp_path / "unstated", long_bert(), data_collator=longest, **wide).train()
    with pytest.raises(ValueError, match="longest"):
        trainer(
            tmp_path / "constant", data_collator=longest, privacy=PrivacyArguments(8.0, 1e-3, pad_to=8)
        ).train()
    stated = PrivacyArguments(8.0, 1e-3, pad_to="longest")
    run = trainer(tmp_path / "stated", long_bert(), data_collator=longest, privacy=stated, **wide)
    run.train()
    assert "padded to the longest" in run.private.explain().padding
    with pytest.raises(ValueError, match="pad_to"):
        PrivacyArguments(8.0, 1e-3, pad_to="most")
    long = trainer(
        tmp_path / "long",
        bert(max_position_embeddings=2048),
        data_collator=transformers.DataCollatorWithPadding(tokenizer()),
    )
    with pytest.raises(ValueError, match="tokenizer and model take 2048"):
        long.train()
