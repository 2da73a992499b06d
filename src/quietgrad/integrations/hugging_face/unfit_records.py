"""Find records that the model cannot take, before the first draw.

So a run never stops because of the records it drew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.integrations.hugging_face.example_losses import CLASSES, IGNORED, TOKENS
from quietgrad.integrations.hugging_face.loss_kind import (
    is_language_model,
    is_sequence_to_sequence,
    vocabulary,
)

CHUNK = 256
"""Records that go through the collator at a time."""


def refuse_unfit(dataset: Any, collator: Callable[[list[Any]], Any], model: nn.Module) -> None:
    """Put all records through the collator once, each beside the first one.

    Raises:
        ValueError: some record is longer than the model takes, has tokens that it does not know, a label that is none
            of the classes, or other entries than the first record.
        Exception: of the collator, if some record does not go into one batch with the first.
    """
    classes = label_classes(model)
    for start in range(0, len(dataset), CHUNK):
        # The first record goes along: else one of another shape, alone at the end, would stop the step that draws it.
        records = [dataset[index] for index in (0, *range(start, min(start + CHUNK, len(dataset))))]
        inputs = dict(collator(records))
        _refuse_other_entries(records, collator)
        refuse_long(inputs, model)
        refuse_tokens(inputs, model)
        labels = inputs.get("labels")
        if labels is not None and classes is not None:
            refuse_labels(labels, classes)


def refuse_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are none of the classes and not −100.

    Raises:
        ValueError: there are some.
    """
    if labels.is_floating_point():
        # One fraction turns the labels of its whole micro-batch into floats, and so their loss into another.
        if labels.shape[1:] != (classes,):
            raise ValueError(
                f"Some labels are no whole numbers. Number the {classes} classes from 0, or give one target for each."
            )
    elif bool(torch.any((labels != IGNORED) & ((labels < 0) | (labels >= classes)))):
        raise ValueError(
            f"Some labels are not among 0 to {classes - 1}. Renumber them from 0, or give the model num_labels=."
        )


def refuse_tokens(inputs: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse token numbers that the model has no embedding for.

    Raises:
        ValueError: there are some.
    """
    types = getattr(getattr(model, "config", None), "type_vocab_size", None) or None
    tokens = _embeddings(model)
    for name, size in (("input_ids", tokens), ("decoder_input_ids", tokens), ("token_type_ids", types)):
        ids = inputs.get(name)
        if size is None or ids is None:
            continue
        if ids.is_floating_point() or bool(torch.any((ids < 0) | (ids >= size))):
            raise ValueError(
                f"Some {name} are not among 0 to {size - 1}. Tokenize with the model's own tokenizer, or resize its "
                "embeddings."
            )


def _refuse_other_entries(records: list[Any], collator: Callable[[list[Any]], Any]) -> None:
    """Refuse records that a batch would take its entries from if they came first in it."""
    first = records[0]
    for record in records:
        if not isinstance(record, Mapping) or record.keys() == first.keys():
            continue
        try:
            alike = dict(collator([record, first])).keys() == dict(collator([first, record])).keys()
        except KeyError:
            alike = False
        if not alike:
            raise ValueError("Some records have other entries than the first one. Give all records the same.")


def _embeddings(model: nn.Module) -> int | None:
    """Return how many tokens the model knows; None where it looks up no tokens."""
    try:
        found = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return getattr(found, "num_embeddings", None)


def refuse_long(inputs: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse more tokens than there are positions."""
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
    """Return how many classes a label may be of; None where labels are no classes."""
    kind, config = getattr(model, "loss_type", None), getattr(model, "config", None)
    if config is None:
        return None
    if is_language_model(model):
        return vocabulary(model)
    if kind in CLASSES | TOKENS and config.num_labels > 1:
        return int(config.num_labels)
    return None
