"""BERT-type encoders from the package `transformers`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from quietgrad.lab.data.hashed_words import PADDING, VOCABULARY
from quietgrad.lab.models.text import check_heads, token_count


class EncoderClassifier(nn.Module):
    """A sequence classifier of `transformers` with token numbers in and logits out."""

    def __init__(self, encoder: nn.Module, num_classes: int, separator: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_classes = num_classes
        self.separator = separator

    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n o"]:
        """Logits; padding is masked."""
        if len(ids) == 0:  # transformers cannot reshape an empty batch
            return torch.zeros(0, self.num_classes, device=ids.device)
        # Positions that all samples share would cost a backward for each sample; these have a row per sample.
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        mask = (ids != PADDING).long()
        types = torch.zeros_like(ids) if self.separator is None else token_types(ids, self.separator)
        logits: Tensor = self.encoder(
            input_ids=ids, attention_mask=mask, position_ids=places, token_type_ids=types
        ).logits
        return logits


def token_types(ids: Int64[Tensor, "n t"], separator: int) -> Int64[Tensor, "n t"]:
    """1 from behind the first `[SEP]` up to the second, its own included; 0 elsewhere."""
    ends = (ids == separator).long()
    behind = ends.cumsum(1) - ends >= 1
    return (behind & (ids != PADDING)).long()


def bert(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = VOCABULARY,
    width: int = 128,
    depth: int = 2,
    heads: int = 2,
    pretrained: str | None = None,
    separator: int | None = None,
) -> nn.Module:
    """BERT with a classification head; the default is BERT-tiny, BERT-base is width=768, depth=12, heads=12.

    Args:
        input_shape: (tokens,).
        num_classes: number of outputs.
        vocabulary: number of token numbers, 0 being padding.
        width: of the embeddings.
        depth: number of layers.
        heads: attention heads; must divide the width.
        pretrained: folder written by a BERT's `save_pretrained`; its sizes count, and the data must use its tokenizer.
        separator: the number of `[SEP]` (102 in BERT's vocabulary), for tasks with two texts.
    """
    transformers = _transformers()
    tokens = token_count(input_shape, "bert")
    if pretrained is not None:
        return EncoderClassifier(_load(transformers, pretrained, num_classes), num_classes, separator)
    check_heads(width, heads)
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=tokens,
        hidden_dropout_prob=0.0,  # the privacy noise regularises already
        attention_probs_dropout_prob=0.0,
        num_labels=num_classes,
        pad_token_id=PADDING,
    )
    return EncoderClassifier(transformers.BertForSequenceClassification(config), num_classes, separator)


def _transformers() -> Any:
    # Imported by name: a type checker that follows `transformers` needs minutes.
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(
            "model='bert' needs the package transformers. Install it: pip install transformers."
        ) from error


def _load(transformers: Any, folder: str, num_classes: int) -> nn.Module:
    if not Path(folder).is_dir():
        raise ValueError(
            f"pretrained={folder!r} is not a folder. Write one with transformers' save_pretrained."
        )
    kind = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).model_type
    if kind != "bert":  # transformers would load it with fresh random weights and only warn
        raise ValueError(f"pretrained={folder!r} holds a model of type {kind!r}. Take the folder of a BERT.")
    encoder: nn.Module = transformers.BertForSequenceClassification.from_pretrained(
        folder, num_labels=num_classes, local_files_only=True
    )
    return encoder
