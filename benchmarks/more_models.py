"""Models beyond the five: `python -m benchmarks.engine --all`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.models import CLASSES, Setting, images, words

TOKENS, WORDS = 64, 8000
COLUMNS, DENSE = 26, 13


class Recurrent(nn.Module):
    """Embedded tokens, a recurrent layer, a head on its last output."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int = 256) -> None:
        super().__init__()
        self.words, self.over_time = nn.Embedding(WORDS, 128), kind(128, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n o"]:
        out: Tensor = self.head(self.over_time(self.words(ids))[0][:, -1])
        return out


class Encoder(nn.Module):
    """torch's own encoder."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n o"]:
        out: Tensor = self.head(self.blocks(self.words(ids)).mean(1))
        return out


class Recommender(nn.Module):
    """DLRM: a table for each of 26 columns, dense columns through a perceptron, products of all pairs, a head."""

    pairs: Tensor

    def __init__(self, rows: int = 2000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(COLUMNS))
        self.dense = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = COLUMNS * (COLUMNS + 1) // 2
        self.head = nn.Sequential(nn.Linear(width + pairs, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        self.register_buffer("pairs", torch.tril_indices(COLUMNS + 1, COLUMNS + 1, -1), persistent=False)

    def forward(self, columns: Int[Tensor, "n c"]) -> Float[Tensor, "n o"]:
        found = [table(ids[:, None]) for table, ids in zip(self.tables, columns.T[DENSE:], strict=True)]
        dense = self.dense(columns[:, :DENSE].float().log1p())
        each = torch.stack([dense, *found], 1)
        first, second = self.pairs
        products = (each @ each.transpose(1, 2))[:, first, second]
        out: Tensor = self.head(torch.cat([dense, products], 1))
        return out


class Logits(nn.Module):
    """A model of `transformers`, its logits only."""

    def __init__(self, model: nn.Module, argument: str = "input_ids") -> None:
        super().__init__()
        self.model, self.argument = model, argument

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(**{self.argument: x}).logits
        return out


def bert() -> nn.Module:
    """6 layers of width 384, position ids as it makes them itself: one row for all samples."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.num_labels = CLASSES
    return Logits(transformers.BertForSequenceClassification(config))


def vit() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=32,
        patch_size=4,
    )  # fmt: skip
    config.num_labels = CLASSES
    return Logits(transformers.ViTForImageClassification(config), "pixel_values")


class Pairs(Logits):
    """The same of an encoder and a decoder that are given one text."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(input_ids=x, decoder_input_ids=x).logits
        return out


def t5() -> nn.Module:
    """4 layers on each side, whose tables of distances are shared by all layers and samples."""
    import transformers

    config = transformers.T5Config(
        vocab_size=WORDS, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4, dropout_rate=0.0,
        use_cache=False,
    )  # fmt: skip
    return Pairs(transformers.T5ForConditionalGeneration(config))


def gpt2(**options: Any) -> nn.Module:
    """Its output matrix is the table of its words."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4, n_positions=TOKENS, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, **options,
    )  # fmt: skip
    return Logits(transformers.GPT2LMHeadModel(config))


def lora() -> nn.Module:
    """Rank 8 on the attention of a frozen GPT-2 of 12 layers of width 768."""
    import peft
    import transformers

    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=TOKENS, use_cache=False)
    adapters = peft.LoraConfig(r=8, target_modules=["c_attn"], lora_dropout=0.0)
    return Logits(peft.get_peft_model(transformers.GPT2LMHeadModel(config), adapters))


def next_word(logits: Float[Tensor, "n t v"], ids: Int[Tensor, "n t"], _: Tensor) -> Float[Tensor, " n"]:
    """The mean loss of a sample's next words."""
    flat = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return flat.mean(1)


MORE = (
    Setting("lstm", lambda: Recurrent(nn.LSTM), 64, words(WORDS, TOKENS)),
    Setting("gru", lambda: Recurrent(nn.GRU), 64, words(WORDS, TOKENS)),
    Setting("encoder", Encoder, 32, words(WORDS, TOKENS)),
    Setting("bert", bert, 16, words(WORDS, TOKENS)),
    Setting("vit", vit, 32, images(3, 32, 32)),
    Setting("t5", t5, 16, words(WORDS, TOKENS), next_word),
    Setting("dlrm", Recommender, 512, words(2000, COLUMNS + DENSE)),
    Setting("gpt2", gpt2, 16, words(WORDS, TOKENS), next_word),
    Setting("lora", lora, 4, words(WORDS, TOKENS), next_word),
)
