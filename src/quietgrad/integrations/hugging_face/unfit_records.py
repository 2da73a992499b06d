"""Find records that the model cannot take, before the first draw.

So a run never stops because of the records it drew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from quietgrad.integrations.hugging_face.example_losses import CLASSES, TOKENS, refuse_labels
from quietgrad.integrations.hugging_face.loss_kind import (
    is_language_model,
    is_sequence_to_sequence,
    vocabulary,
)

CHUNK = 256
"""Records that go through the collator at a time."""


def refuse_unfit(dataset: Any, collator: Callable[[list[Any]], Any], model: nn.Module) -> None:
    """All records, through the collator once, in their order.

    Raises:
        ValueError: some record is longer than the model takes, or its label is none of the classes.
    """
    classes = label_classes(model)
    for start in range(0, len(dataset), CHUNK):
        records = [dataset[index] for index in range(start, min(start + CHUNK, len(dataset)))]
        inputs = dict(collator(records))
        refuse_long(inputs, model)
        labels = inputs.get("labels")
        if labels is not None and classes is not None and not labels.is_floating_point():
            refuse_labels(labels, classes)


def refuse_long(inputs: Mapping[str, Any], model: nn.Module) -> None:
    """More tokens than there are positions."""
    longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or -1
    # The decoder reads the labels as tokens, so they need positions too.
    read = ("input_ids", "labels") if is_sequence_to_sequence(model) else ("input_ids",)
    rows = [inputs[name] for name in read if name in inputs]
    if longest > 0 and any(ids.shape[1] > longest for ids in rows):
        raise ValueError(
            f"A record has more tokens than the {longest} that the model takes. Tokenize with truncation=True, "
            f"max_length={longest}."
        )


def label_classes(model: nn.Module) -> int | None:
    """How many classes a label may be of; None where labels are no classes."""
    kind, config = getattr(model, "loss_type", None), getattr(model, "config", None)
    if config is None:
        return None
    if is_language_model(model):
        return vocabulary(model)
    if kind in CLASSES | TOKENS and config.num_labels > 1:
        return int(config.num_labels)
    return None
