"""`hf:PATH`: a classifier from any folder in Hugging Face's format, whole or with LoRA adapters."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from quietgrad.integrations.pretrained import model_folder
from quietgrad.integrations.text_folder import padding_of
from quietgrad.lab.models.text import token_count

PREFIX = "hf:"
LORA = {"rank": 4, "alpha": 8.0, "targets": None}
"""Options of [model.lora] and what they are if left out; targets of None are peft's choice for the model."""


class FolderClassifier(nn.Module):
    """A sequence classifier of `transformers` with token numbers in and logits out."""

    def __init__(self, classifier: nn.Module, padding: int, num_classes: int, *, places: bool) -> None:
        super().__init__()
        self.classifier, self.padding, self.num_classes, self._places = (
            classifier,
            padding,
            num_classes,
            places,
        )

    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n o"]:
        """Logits; padding is masked."""
        if len(ids) == 0:  # transformers cannot reshape an empty batch
            return torch.zeros(0, self.num_classes, device=ids.device)
        inputs: dict[str, Tensor] = {"input_ids": ids, "attention_mask": ids.ne(self.padding).long()}
        if self._places:
            # Positions that all samples share would cost a backward for each sample; these have a row per sample.
            inputs["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        logits: Tensor = self.classifier(**inputs).logits
        return logits


def hf_folder(
    name: str, input_shape: tuple[int, ...], num_classes: int, lora: Mapping[str, Any] | None = None
) -> nn.Module:
    """The folder's model with a fresh classification head.

    Args:
        name: hf:PATH, or hf:minilm.
        input_shape: (tokens,), made by the folder's own tokenizer.
        num_classes: number of outputs.
        lora: rank, alpha and targets of LoRA adapters; then only they and the head train.
    """
    token_count(input_shape, name)
    folder = model_folder(name)
    transformers = importlib.import_module("transformers")
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=num_classes, local_files_only=True, ignore_mismatched_sizes=True
    )
    padding = padding_of(folder)
    classifier.config.pad_token_id = padding
    places = classifier.config.model_type == "bert"
    if lora is not None:
        classifier = _with_lora(classifier, lora)
    return FolderClassifier(classifier, padding, num_classes, places=places)


def _with_lora(classifier: nn.Module, given: Mapping[str, Any]) -> nn.Module:
    unknown = sorted(set(given) - set(LORA))
    if unknown:
        raise ValueError(f"Unknown option model.lora.{unknown[0]}. Known: {', '.join(LORA)}.")
    try:
        peft = importlib.import_module("peft")
    except ImportError:
        raise ValueError("[model.lora] needs peft: pip install 'quietgrad[hugging-face]'.") from None
    options = {**LORA, **given}
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=options["rank"], lora_alpha=options["alpha"], target_modules=options["targets"]
    )
    adapted: nn.Module = peft.get_peft_model(classifier, config)
    return adapted
