"""RGP on a BERT-type encoder from `transformers`, unchanged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._representations.low_rank.low_rank import LowRankCodec
from tests.cases.world import privatizer

transformers = pytest.importorskip("transformers")

RECORDS, TOKENS = 6, 5


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = transformers.BertForSequenceClassification(config).double()
    return model


def data() -> TensorDataset:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (RECORDS, TOKENS), generator=rng)
    return TensorDataset(ids, torch.randint(3, (RECORDS,), generator=rng))


def losses(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids=ids).logits, labels, reduction="none")


def step(model: nn.Module, mechanism: qg.Mechanism) -> tuple[dict[str, Tensor], LowRankCodec]:
    """One step on all records, and the codec that it used."""
    rows = list(range(RECORDS))
    with privatizer(mechanism, [rows], model=model, data=data(), rate=1.0) as (private, batches, _):
        codec = private.begin_step().codec(0)
        for ids, labels in next(iter(batches)).split(4):
            private.backward(losses(model, ids, labels))
        private.release()
        assert isinstance(codec, LowRankCodec)
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, codec


@pytest.mark.parametrize(
    "matrices", [None, ("*.attention.*", "*.dense.weight")], ids=["default", "as_the_paper"]
)
def test_the_gradient_is_the_projection_of_autograds(
    bert: nn.Module, matrices: tuple[str, ...] | None
) -> None:
    got, codec = step(bert, qg.methods.rgp(rank=2, clip=1e6, matrices=matrices).with_noise(0.0))
    assert "bert.encoder.layer.0.attention.self.query.weight" in codec.carriers
    assert "bert.encoder.layer.1.output.dense.weight" in codec.carriers
    assert "classifier.weight" not in codec.carriers
    assert ("bert.embeddings.word_embeddings.weight" in codec.carriers) == (matrices is None)
    total = losses(bert, *data()[:]).sum() / RECORDS
    names, parameters = zip(*bert.named_parameters(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(total, parameters), strict=True):
        expected = gradient
        if name in codec.carriers:
            left, right = codec.carriers[name].left, codec.carriers[name].right
            off = gradient - left @ left.T @ gradient
            expected = gradient - (off - off @ right.T @ right)
        torch.testing.assert_close(got[name], expected)


def test_noise_is_paid_on_the_carriers_only(bert: nn.Module) -> None:
    _, codec = step(bert, qg.methods.rgp(rank=2).with_noise(1.0))
    released = sum(shape.numel() for shape in codec.space.values())
    assert released < 0.5 * sum(p.numel() for p in bert.parameters())
