"""BERT- and GPT-2-type models built from a configuration match the loop and train a private step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from tests.reference import looped

transformers = pytest.importorskip("transformers")
VOCABULARY, TOKENS, N = 13, 5, 3


class Logits(nn.Module):
    """Token numbers in, logits out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids).logits


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    return Logits(transformers.BertForSequenceClassification(config))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Logits(transformers.GPT2LMHeadModel(config))


def losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    logits = model(*inputs)
    if logits.dim() == 2:
        return F.cross_entropy(logits, inputs[0][:, 0] % 3, reduction="none")
    following = inputs[0].roll(-1, 1)
    return F.cross_entropy(logits.transpose(1, 2), following, reduction="none").mean(1)


@pytest.fixture(params=[bert, gpt2], ids=["bert", "gpt2"])
def model(request: Any) -> nn.Module:
    torch.manual_seed(0)
    return request.param()


def ids() -> Tensor:
    return torch.randint(0, VOCABULARY, (N, TOKENS), generator=torch.Generator().manual_seed(0))


def test_per_sample_gradients_equal_the_loop(model: nn.Module) -> None:
    model = model.double()
    expected = looped(model, (ids(),), losses, N)
    recorder = Recorder(model)
    recorder.attach()
    for _ in range(2):
        grads = recorder.collect(losses(model, (ids(),)))
    recorder.detach()
    weights = torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    total = grads.weighted_sum(weights)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
        torch.testing.assert_close(total[name], torch.tensordot(weights, rows, 1))
    squared = sum(rows.flatten(1).square().sum(1) for rows in expected.values())
    torch.testing.assert_close(grads.squared_norms(), squared)


def test_a_private_step_trains(model: nn.Module) -> None:
    batches = qg.PoissonBatches(TensorDataset(ids()), rate=1.0, steps=1)
    before = [p.clone() for p in model.parameters()]
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches) as private:
        for batch in batches:
            for (rows,) in batch.split(N):
                private.backward(losses(model, (rows,)))
            private.release()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
