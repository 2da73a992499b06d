"""TRL's trainers train privately, with the losses that TRL gives single records."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import quietgrad as qg
from quietgrad.integrations.hugging_face import PrivacyArguments, private_trainer
from tests.integrations.tiny_text import gpt2, llama
from tests.integrations.tokens import tokenizer

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
from quietgrad.integrations.trl import PrivateDPOTrainer, PrivateSFTTrainer  # noqa: E402

PRIVACY = PrivacyArguments(8.0, 1e-3, pad_to=16)
TEMPLATE = (
    "{% for m in messages %}{{ 'w1 ' if m['role'] == 'user' else 'w2 ' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }} [SEP]{% endgeneration %}{% else %}{{ m['content'] }}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}w2 {% endif %}"
)


def words(count: int, seed: int) -> str:
    return " ".join(f"w{random.Random(seed).randrange(3, 19)}" for _ in range(count))


def said(role: str, count: int, seed: int) -> dict[str, str]:
    return {"role": role, "content": words(count, seed)}


def records(kind: str, count: int = 12) -> Any:
    made: dict[str, Any] = {
        "completions": lambda n: {"prompt": words(2, n), "completion": " " + words(1 + n % 4, 50 + n)},
        "chats": lambda n: {"messages": [said("user", 2, n), said("assistant", 1 + n % 4, 50 + n)]},
        "choices": lambda n: {
            "prompt": words(2, n),
            "chosen": " " + words(1 + n % 3, 50 + n),
            "rejected": " " + words(1 + n % 4, 90 + n),
        },
    }
    return datasets.Dataset.from_list([made[kind](n) for n in range(count)])


def config(kind: Any, folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "max_steps": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "report_to": "none",
        "use_cpu": True, "save_strategy": "no", "logging_steps": 1, "optim": "sgd", "learning_rate": 1.0,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "bf16": False, "gradient_checkpointing": False,
    }  # fmt: skip
    return kind(str(folder), **(settings | options))


def read() -> Any:
    made = tokenizer()
    made.eos_token, made.chat_template = "[SEP]", TEMPLATE
    return made


def sft(folder: Path, kind: str = "completions", model: Any = None, **options: Any) -> Any:
    own = {key: options.pop(key) for key in ("peft_config",) if key in options}
    return PrivateSFTTrainer(
        model or llama(),
        config(trl.SFTConfig, folder, **options),
        privacy=PRIVACY,
        train_dataset=records(kind),
        processing_class=read(),
        **own,
    )


def dpo(folder: Path, **options: Any) -> Any:
    own = {key: options.pop(key) for key in ("peft_config",) if key in options}
    reference = {} if own else {"ref_model": llama(initializer_range=0.5)}
    return PrivateDPOTrainer(
        llama(),
        args=config(trl.DPOConfig, folder, **options),
        privacy=PRIVACY,
        train_dataset=records("choices"),
        processing_class=read(),
        **own,
        **reference,
    )


MADE: dict[str, Any] = {
    "completion only": lambda folder: sft(folder),
    "whole texts": lambda folder: sft(folder, completion_only_loss=False),
    "assistant only": lambda folder: sft(folder, "chats", assistant_only_loss=True),
    "dpo": lambda folder: dpo(folder),
    "dpo of two losses": lambda folder: dpo(folder, loss_type=["ipo", "hinge"], loss_weights=[0.5, 2.0]),
    "dpo against noise": lambda folder: dpo(folder, loss_type=["robust", "apo_zero"], label_smoothing=0.2),
}


@pytest.mark.parametrize("name", MADE)
def test_a_release_is_the_sum_of_the_losses_that_trl_gives_single_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    silent = qg.methods.dp_sgd(clip=1e6).with_noise(0.0)
    monkeypatch.setattr(private_trainer, "calibrate", lambda *_, **__: silent)
    run = MADE[name](tmp_path)
    parent = trl.DPOTrainer if name.startswith("dpo") else trl.SFTTrainer
    run.model.eval()  # or TRL would count the tokens of this comparison
    dataset = run._remove_unused_columns(run.train_dataset, description="training")
    for record in dataset:
        loss = parent.compute_loss(run, run.model, run._prepare_inputs(run.data_collator([record])))
        (loss / 12).backward()
    expected = {key: p.grad.clone() for key, p in run.model.named_parameters()}
    run.model.zero_grad()
    before = {key: p.detach().clone() for key, p in run.model.named_parameters()}
    run.train()
    for key, p in run.model.named_parameters():
        torch.testing.assert_close(before[key] - p, expected[key], rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("made", [sft, dpo], ids=["sft", "dpo"])
def test_lora_trains_through_both_and_nothing_of_the_records_is_logged(tmp_path: Path, made: Any) -> None:
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"])
    run = made(tmp_path, peft_config=adapters, bf16=True, gradient_checkpointing=True)
    assert run.train().global_step == run.private.ledger.count == 1
    assert all("lora" in name for name in run.private.parameters)
    logged = {key for entry in run.state.log_history for key in entry}
    assert logged <= {"epoch", "step", "learning_rate", "grad_norm", "epsilon", "delta"}, json.dumps(
        sorted(logged)
    )


@pytest.mark.parametrize("option", ["packing", "padding_free"])
def test_packed_sequences_are_refused_with_the_reason(tmp_path: Path, option: str) -> None:
    with pytest.raises(qg.PrivacyError, match=f"{option}=True.*joins several records to one row"):
        sft(tmp_path, "completions", None, **{option: True})


def test_what_has_no_loss_of_a_record_is_refused_and_the_remedy_works(tmp_path: Path) -> None:
    with pytest.raises(qg.PrivacyError, match=r"sorts the pairs.*Take 'sigmoid'"):
        dpo(tmp_path, loss_type="aot")
    with pytest.raises(ValueError, match="Take one of 'sigmoid'"):
        dpo(tmp_path, loss_type="discopop")
    with pytest.raises(ValueError, match=r"ld_alpha=0.5.*Leave it out"):
        dpo(tmp_path, ld_alpha=0.5)
    with pytest.raises(ValueError, match="Take 'nll'"):
        sft(tmp_path, loss_type="dft")
    assert sft(tmp_path, loss_type="nll", model=gpt2()).train().global_step == 1
