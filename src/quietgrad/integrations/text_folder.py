"""A model's folder as tokenizer and as frozen encoder of texts."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor, nn

from quietgrad.integrations.pretrained import model_folder

ROWS = 64
"""Texts that are encoded at a time."""


class FolderTokens:
    """The tokenizer of a model's folder, cut and padded to one length.

    Args:
        name: `minilm`, or a folder.
        length: tokens of a row.

    Raises:
        ValueError: the folder cannot be used, or its model takes fewer tokens.
    """

    def __init__(self, name: str, length: int) -> None:
        self.folder, self.length = model_folder(name), length
        transformers = _transformers()
        longest = getattr(_config(self.folder), "max_position_embeddings", None)
        if longest is not None and length > longest:
            raise ValueError(
                f"data.tokens = {length} is more than the {longest} that {name!r} takes. Lower it."
            )
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    def encode(self, texts: Sequence[str]) -> Int64[ndarray, "n t"]:
        """Token numbers; padding has the tokenizer's own number for it, 0 if it has none."""
        padding = self._tokenizer.pad_token_id or 0
        rows = np.full((len(texts), self.length), padding, dtype=np.int64)
        for start in range(0, len(texts), 1000):
            part = list(texts[start : start + 1000])
            found = self._tokenizer(part, truncation=True, max_length=self.length)["input_ids"]
            for row, ids in enumerate(found, start=start):
                rows[row, : len(ids)] = ids
        return rows

    def describe(self) -> str:
        """One line for the report."""
        return f"first {self.length} tokens of a text, by the tokenizer of the model's folder"


class TextEncoder(nn.Module):
    """A frozen encoder from token numbers [n, t] to features [n, d].

    Features are the mean over real tokens of the last hidden layer.

    Args:
        name: `minilm`, or a folder.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        folder = model_folder(name)
        transformers = _transformers()
        self.model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
        self.model.eval().requires_grad_(False)
        self.padding = padding_of(folder)

    @torch.no_grad()
    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        if len(ids) == 0:
            return torch.zeros(0, self.model.config.hidden_size)
        parts = [self._mean(few) for few in ids.split(ROWS)]
        return torch.cat(parts)

    def _mean(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        # Never cut to the longest of these texts: the rounding of all of them would follow its length.
        real = ids.ne(self.padding)
        hidden: Tensor = self.model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        weights = real[:, :, None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def padding_of(folder: str) -> int:
    """Return the number of the padding token, 0 if the model has none."""
    return int(getattr(_config(folder), "pad_token_id", None) or 0)


def _config(folder: str) -> Any:
    return _transformers().AutoConfig.from_pretrained(folder, local_files_only=True)


def _transformers() -> Any:
    # Imported by name: a type checker that follows `transformers` needs minutes.
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise ValueError(
            "A model's folder needs transformers: pip install 'quietgrad[hugging-face]'."
        ) from None
