"""Fine-tuned models: per-example gradients equal a loop in float64, and what is frozen costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder
from tests.integrations.tiny_text import VOCABULARY, bert, llama
from tests.reference import Losses, looped

N, TOKENS = 3, 5


class Logits(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids, attention_mask=ids.ne(0).long()).logits


def lora(model: nn.Module, task: str, targets: list[str]) -> nn.Module:
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(task_type=task, r=2, target_modules=targets))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zero at first, which would make the gradient of A zero
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return adapted


def checkpointed(model: Any) -> nn.Module:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


CASES: dict[str, Callable[[], nn.Module]] = {
    "bert, sdpa": lambda: bert(attn_implementation="sdpa"),
    "bert, eager": lambda: bert(attn_implementation="eager"),
    "bert, checkpointed": lambda: checkpointed(bert()),
    "bert, lora": lambda: lora(bert(), "SEQ_CLS", ["query", "value"]),
    "masked head, tied": lambda: bert("BertForMaskedLM", tie_word_embeddings=True),
    "llama, tied": llama,
    "llama, checkpointed": lambda: checkpointed(llama()),
    "llama, lora": lambda: lora(llama(), "CAUSAL_LM", ["q_proj", "v_proj"]),
}


def ids() -> Tensor:
    rows = torch.randint(1, VOCABULARY, (N, TOKENS), generator=torch.Generator().manual_seed(0))
    rows[1, 3:] = 0
    return rows


def losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    logits = model(*inputs)
    if logits.dim() == 2:
        return F.cross_entropy(logits, inputs[0][:, 0] % 3, reduction="none")
    return F.cross_entropy(logits.transpose(1, 2), inputs[0].roll(-1, 1), reduction="none").mean(1)


def collected(model: nn.Module, inputs: Tensor, losses: Losses = losses) -> Any:
    recorder = Recorder(model)
    recorder.attach()
    for _ in range(2):
        grads = recorder.collect(losses(model, (inputs,)))
    recorder.detach()
    return grads


@pytest.mark.parametrize("case", CASES)
def test_per_example_gradients_equal_the_loop(case: str) -> None:
    model = Logits(CASES[case]()).double()
    expected = looped(model, (ids(),), losses, N)
    grads = collected(model, ids())
    assert set(grads.blocks) == set(expected)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
    assert all(float(rows.abs().max()) > 0 for name, rows in expected.items() if "lora" in name)


ROUNDING = 2.0**-8
"""Of bf16: the most by which a number moves, as a part of itself."""


def under_bf16(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return losses(model, inputs).float()


@pytest.mark.parametrize("case", CASES)
def test_under_bf16_autocast_gradients_are_those_of_single_examples_under_it(case: str) -> None:
    """What autograd gives for each example alone, but for two roundings to bf16 (the product's, and before it)."""
    model, rows = Logits(CASES[case]()), ids()
    alone = [looped(model, (row[None],), under_bf16, 1) for row in rows]
    expected = {name: torch.cat([each[name] for each in alone]).flatten(1) for name in alone[0]}
    grads = collected(model, rows, under_bf16)
    assert set(grads.blocks) == set(expected)
    whole = torch.cat(list(expected.values()), 1).norm(dim=1)
    for name, truth in expected.items():
        error = (grads.blocks[name].dense().flatten(1) - truth).norm(dim=1)
        # A bias of keys moves no softmax: its gradient is rounding and nothing else, small beside the whole.
        assert (error <= 2 * ROUNDING * truth.norm(dim=1) + ROUNDING / 16 * whole).all(), name
    torch.testing.assert_close(grads.squared_norms().sqrt().float(), whole, rtol=ROUNDING / 2, atol=0)


def test_frozen_parts_are_not_captured() -> None:
    adapted = Logits(lora(llama(num_hidden_layers=2), "CAUSAL_LM", ["q_proj"]))
    recorder = Recorder(adapted)
    assert all("lora" in name for name in recorder.parameters)
    recorder.attach()
    grads = recorder.collect(losses(adapted, (ids(),)))
    recorder.detach()
    assert set(grads.blocks) == set(recorder.parameters)
    hooked = [name for name, module in adapted.named_modules() if module._forward_hooks and name]
    assert hooked == []
    explained = recorder.explain(float(N))
    assert all("lora" in layer.layer for layer in explained)
    assert all(p.grad is None for p in adapted.parameters())
