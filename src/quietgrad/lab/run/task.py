"""The task of a config: its data as private, public and test parts, with features computed once if it says so."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.integrations.pretrained import IMAGES, TEXT, image_encoder
from quietgrad.integrations.prompted_text import PREFIX as PROMPT
from quietgrad.integrations.prompted_text import PromptEncoder, PromptTokens, cache_folder
from quietgrad.integrations.text_folder import FolderTokens, TextEncoder
from quietgrad.lab.data import Parts, load
from quietgrad.lab.data.text_table import Tokenizer
from quietgrad.lab.data.word_pieces import WordPieces
from quietgrad.lab.errors import LabError, nearest
from quietgrad.lab.models import ScatterNet, precompute
from quietgrad.lab.models.hf_folder import PREFIX
from quietgrad.lab.models.shapes import image_shape
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.config_sections import DataConfig

NONE, SCATTER = "none", "scatter"


def load_task(config: Config, *, data_dir: Path | None = None) -> Parts:
    """Read the data that the config names and split it."""
    if config.data.features != NONE and config.augment.active:
        raise LabError("Views are made of images, not of features. Leave out [augment] or data.features.")
    if is_pretrained(config.data.features):
        return _pretrained(config.data, data_dir)
    _refuse_prompt_settings(config.data)
    parts = load(data_dir=data_dir, words=_words(config), columns=config.columns, **_wanted(config.data))
    return parts if config.data.features == NONE else scattered(parts)


def _refuse_prompt_settings(data: DataConfig) -> None:
    for name, given in (("prompt", data.prompt is not None), ("precision", data.precision != "float32")):
        if given:
            raise LabError(f'data.{name} is for data.features = "prompt:MODEL". Leave one out, or give both.')


def feature_encoder(config: Config, shape: tuple[int, ...]) -> nn.Module | None:
    """Return the frozen encoder of data.features, for records of a shape; None where inputs are taken as they are."""
    features = config.data.features
    if not is_pretrained(features):
        return None if features == NONE else ScatterNet(*image_shape(shape, "data.features", smallest=8)[1:])
    if features in IMAGES:
        return _Colours(image_encoder(features))
    return _prompted(config.data)[1] if features.startswith(PROMPT) else TextEncoder(features)


def _prompted(data: DataConfig) -> tuple[PromptTokens, PromptEncoder]:
    """Return the tokenizer with the prompt around a text, and the model that reads it."""
    if data.prompt is None:
        raise LabError(
            f'data.features = {data.features!r} needs data.prompt, such as "Review: {{}}\\nSentiment:".'
        )
    tokens = PromptTokens(data.features, data.prompt, data.tokens)
    dtype = torch.bfloat16 if data.precision == "bfloat16" else torch.float32
    return tokens, PromptEncoder(data.features, tokens.padding, cache_folder(), dtype=dtype)


def _words(config: Config) -> Tokenizer | None:
    """Return the model's own tokenizer, or the vocabulary that the config names."""
    if config.model.name.startswith(PREFIX):
        return FolderTokens(config.model.name, config.data.tokens)
    return None if config.data.tokenizer is None else WordPieces(config.data.tokenizer, config.data.tokens)


def scattered(parts: Parts) -> Parts:
    """ScatterNet's features in the place of the images: fixed filters, so they tell of their own record only."""
    _, height, width = image_shape(parts.input_shape, "data.features = scatter", smallest=8)
    return precompute(parts, ScatterNet(height, width))


def is_pretrained(features: str) -> bool:
    """Whether an encoder was trained on other data; a name that is none is refused."""
    known = [NONE, SCATTER, *IMAGES, *TEXT]
    if features not in known and not features.startswith((PREFIX, PROMPT)):
        raise LabError(
            f"Unknown data.features = {features!r}{nearest(features, known)}. Known: {', '.join(known)}, hf:PATH, "
            "prompt:MODEL."
        )
    return features not in (NONE, SCATTER)


@lru_cache(maxsize=1)
def _pretrained(data: DataConfig, data_dir: Path | None) -> Parts:
    """Features of a frozen encoder, computed once for all runs of a process that share data and encoder."""
    encode = _images if data.features in IMAGES else _texts
    parts = encode(data, data_dir)
    return replace(parts, record={**parts.record, "features": f"{data.features}, frozen"})


def _images(data: DataConfig, data_dir: Path | None) -> Parts:
    parts = load(data_dir=data_dir, as_stored=True, **_wanted(data))
    if len(parts.input_shape) != 3:
        raise LabError(
            f"data.features = {data.features!r} takes images, and {data.name} has none. Take another encoder."
        )
    return precompute(parts, _Colours(image_encoder(data.features)))


def _texts(data: DataConfig, data_dir: Path | None) -> Parts:
    words: Tokenizer
    encoder: nn.Module
    if data.features.startswith(PROMPT):
        words, encoder = _prompted(data)
    else:
        words, encoder = FolderTokens(data.features, data.tokens), TextEncoder(data.features)
    parts = load(data_dir=data_dir, words=words, **_wanted(data))
    if len(parts.input_shape) != 1 or parts.private.tensors[0].is_floating_point():
        raise LabError(
            f"data.features = {data.features!r} takes texts, and {data.name} has none. Take another encoder."
        )
    return precompute(parts, encoder)


class _Colours(nn.Module):
    """Grey images get three equal channels."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        features: Tensor = self.encoder(images.expand(-1, 3, -1, -1))
        return features


def _wanted(data: DataConfig) -> dict[str, Any]:
    return data.model_dump(
        exclude={"features", "prompt", "tokens", "tokenizer", "most_records", "pooled", "precision"}
    )
