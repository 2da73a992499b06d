"""Language models train in PrivateTrainer: causal, masked and sequence to sequence, each with its own loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer, private_trainer
from quietgrad.integrations.hugging_face.example_losses import example_losses
from quietgrad.integrations.hugging_face.loss_kind import loss_kind
from tests.integrations.tiny_text import Records, arguments, bart, bert, gpt2, llama, pad, t5
from tests.integrations.tokens import tokenizer

PRIVACY = PrivacyArguments(epsilon=8.0, delta=1e-3)
MODELS = {
    "gpt2": gpt2,
    "t5": t5,
    "bart": bart,
    "bert": lambda: bert("BertForMaskedLM"),
    "bert causal": lambda: bert("BertLMHeadModel", is_decoder=True),
    "bart causal": lambda: bart("BartForCausalLM"),
    "llama": llama,
}


def trainer(folder: Path, model: nn.Module, kind: Any = PrivateTrainer, **options: Any) -> Any:
    own = {
        key: options.pop(key) for key in ("compute_loss_func", "data_collator", "privacy") if key in options
    }
    data = options.pop("train_dataset", Records(40, tokens=True))
    settings = {"privacy": PRIVACY, "data_collator": pad} | own
    return kind(model, arguments(folder, **options), train_dataset=data, **settings)


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nothing is clipped and nothing is added; one step moves the weights by the mean gradient."""
    silent = qg.methods.dp_sgd(clip=1e6).with_noise(0.0)
    monkeypatch.setattr(private_trainer, "calibrate", lambda *_, **__: silent)
    plain = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    return plain | {"max_steps": 1, "gradient_accumulation_steps": 3}


@pytest.mark.parametrize("name", MODELS)
def test_a_release_is_the_sum_of_the_models_own_losses_of_single_records(
    tmp_path: Path, name: str, without_noise: dict[str, Any]
) -> None:
    records = Records(12, tokens=True)
    run = trainer(tmp_path, MODELS[name]().double(), train_dataset=records, **without_noise)
    before = {key: p.clone() for key, p in run.model.named_parameters()}
    alone = MODELS[name]().double()
    for index in range(12):
        (alone(**pad([records[index]])).loss / 12).backward()
    run.train()
    for key, p in alone.named_parameters():
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        # The models compute their loss in float32.
        torch.testing.assert_close(before[key] - run.model.get_parameter(key), expected, rtol=1e-4, atol=1e-6)


def test_labels_that_do_not_count_and_smoothing_are_those_of_transformers() -> None:
    from transformers.trainer_pt_utils import LabelSmoother

    model = gpt2().eval()
    inputs = pad([Records(40, tokens=True)[index] for index in range(6)])
    inputs["labels"][:, :2] = -100
    inputs["labels"][3] = -100  # a record without any label
    labels = inputs.pop("labels")
    logits = model(**inputs).logits
    found = example_losses(logits, labels, "ForCausalLM", smoothing=0.1)
    for index in (0, 1, 2, 4, 5):
        one = {"logits": logits[index : index + 1]}
        expected = LabelSmoother(0.1)(one, labels[index : index + 1], shift_labels=True)
        torch.testing.assert_close(found[index], expected)
    assert found[3] == 0


LORA: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "gpt2": (gpt2, "CAUSAL_LM", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "smollm2": (lambda: llama(rope_theta=1e5), "CAUSAL_LM", {"target_modules": ["q_proj", "v_proj"]}),
    "t5": (t5, "SEQ_2_SEQ_LM", {"target_modules": ["q", "v"]}),
    "bart": (bart, "SEQ_2_SEQ_LM", {"target_modules": ["q_proj", "v_proj"]}),
}
"""SmolLM2 is a Llama with tied weights and fewer heads for keys, as the tests' Llama is."""


@pytest.mark.parametrize("name", LORA)
def test_a_language_model_trains_with_lora(tmp_path: Path, name: str) -> None:
    peft = pytest.importorskip("peft")
    make, task, options = LORA[name]
    adapted = peft.get_peft_model(make(), peft.LoraConfig(task_type=task, r=2, **options))
    run = trainer(tmp_path, adapted, max_steps=2, label_smoothing_factor=0.1)
    assert run.train().global_step == run.private.ledger.count == 2
    assert all("lora" in name for name in run.private.parameters)


def test_targets_are_padded_and_cut_with_the_inputs(tmp_path: Path) -> None:
    import transformers

    class Pairs(Records):
        def __getitem__(self, index: int) -> dict[str, Any]:
            row = self.rows[index]
            return {
                "input_ids": row,
                "attention_mask": [1] * len(row),
                "labels": (row + row)[: index % 11 + 1],
            }

    sizes: set[tuple[int, int]] = set()

    class Watched(PrivateTrainer):
        def compute_losses(self, model: nn.Module, inputs: Any) -> Tensor:
            sizes.add((inputs["input_ids"].shape[1], inputs["labels"].shape[1]))
            return super().compute_losses(model, inputs)

    run = trainer(
        tmp_path,
        t5(),
        kind=Watched,
        train_dataset=Pairs(40),
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer()),
        privacy=PrivacyArguments(8.0, 1e-3, pad_to=6),
        max_steps=1,
    )
    assert run.train().global_step == 1
    assert sizes == {(6, 6)}


def test_targets_that_the_decoder_cannot_take_are_found_before_anything_is_drawn(tmp_path: Path) -> None:
    class Long(Records):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": [3] * 17 if index == 39 else self.rows[index], "labels": self.rows[index]}

    run = trainer(tmp_path, bart(), train_dataset=Long(40))
    with pytest.raises(ValueError, match="more tokens than the 16"):
        run.train()
    assert run.private is None


class Spans(Records):
    """For a model whose labels are two positions."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "start_positions": 0, "end_positions": 1}


def test_a_model_without_a_known_loss_is_refused_and_the_remedies_work(tmp_path: Path) -> None:
    def own(outputs: Any, labels: Tensor, **_: Any) -> Tensor:
        return F.cross_entropy(outputs.logits, labels, reduction="none")

    class Mine(PrivateTrainer):
        def compute_losses(self, model: nn.Module, inputs: Any) -> Tensor:
            labels = inputs.pop("labels")
            return own(model(**inputs), labels)

    settings: dict[str, Any] = {"train_dataset": Records(40), "max_steps": 1}
    model = bert("BertForNextSentencePrediction", num_labels=3)
    setattr(model.get_submodule("cls"), "seq_relationship", nn.Linear(8, 3))  # noqa: B010
    with pytest.raises(ValueError, match=r"override compute_losses\(model, inputs\)"):
        trainer(tmp_path / "refused", model, **settings).train()
    assert trainer(tmp_path / "own", model, kind=Mine, **settings).train().global_step == 1
    assert trainer(tmp_path / "func", model, compute_loss_func=own, **settings).train().global_step == 1


def test_records_without_labels_are_refused_and_the_remedy_works(tmp_path: Path) -> None:
    def collate(records: list[Any]) -> dict[str, Tensor]:
        names = ("start_positions", "end_positions")
        return pad(records) | {name: torch.tensor([record[name] for record in records]) for name in names}

    class Mine(PrivateTrainer):
        def compute_losses(self, model: nn.Module, inputs: Any) -> Tensor:
            start, end = inputs.pop("start_positions"), inputs.pop("end_positions")
            outputs = model(**inputs)
            found = F.cross_entropy(outputs.start_logits, start, reduction="none")
            return (found + F.cross_entropy(outputs.end_logits, end, reduction="none")) / 2

    settings: dict[str, Any] = {"train_dataset": Spans(40), "data_collator": collate, "max_steps": 1}
    model = bert("BertForQuestionAnswering", num_labels=2)
    with pytest.raises(ValueError, match=r"no labels.*override compute_losses\(model, inputs\)"):
        trainer(tmp_path / "refused", model, **settings).train()
    assert trainer(tmp_path / "own", model, kind=Mine, **settings).train().global_step == 1


def test_a_trainer_with_its_own_mean_is_accepted_once_it_gives_the_losses_of_single_records(
    tmp_path: Path,
) -> None:
    import transformers

    class Theirs(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Tensor:
            return model(**inputs).loss

    class Refused(private_trainer.PrivateTraining, Theirs):
        pass

    class Mine(private_trainer.PrivateTraining, Theirs):
        def compute_losses(self, model: nn.Module, inputs: Any) -> Tensor:
            labels = inputs.pop("labels")
            return example_losses(model(**inputs).logits, labels, "ForCausalLM")

    with pytest.raises(qg.PrivacyError, match="Theirs overrides compute_loss"):
        trainer(tmp_path, gpt2(), kind=Refused)
    assert trainer(tmp_path, gpt2(), kind=Mine, max_steps=1).train().global_step == 1


def test_asking_for_the_kind_of_loss_leaves_the_model_as_it_was() -> None:
    model = gpt2()
    model.train()
    model.get_submodule("transformer.h.0").eval()
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    assert loss_kind(model) == "ForCausalLM"
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
