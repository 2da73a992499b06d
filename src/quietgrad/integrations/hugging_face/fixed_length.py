"""Let a collator of transformers pad every micro-batch to one length.

Collators pad to the longest record that was drawn, and that length is data. A copy of the collator pads to a length
that was stated, or to the most that tokenizer and model take.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn
from transformers import DataCollatorForSeq2Seq
from transformers.utils import logging

from quietgrad._sampling.padding import PaddingRule

Collator = Callable[[list[Any]], Any]

MOST_UNSTATED = 512
"""Lengths above this are never chosen by default: padding short texts so far would cost many times the time."""

_logger = logging.get_logger(__name__)


def pad_to_one_length(
    collator: Collator, pad_to: int | str | None, tokenizer: Any, model: nn.Module
) -> tuple[Collator, PaddingRule]:
    """Return a collator whose lengths do not depend on the draw, and what is stated about it.

    A collator without options for padding stays as it is: the training loop is asked whether its lengths follow the
    records.

    Args:
        pad_to: what the user stated: a length, "longest", or nothing.
        tokenizer: of the Trainer, if it has one.

    Raises:
        ValueError: the collator cannot pad to this length, or no length is known.
    """
    if pad_to == "longest":
        return collator, PaddingRule.of("longest")
    if not _pads(collator):
        if pad_to is not None:
            raise ValueError(
                f"PrivacyArguments(pad_to={pad_to}) needs a collator of transformers that pads, got "
                f"{getattr(collator, '__name__', type(collator).__name__)}. Pad to that length in it, and leave pad_to "
                "out."
            )
        return collator, PaddingRule()
    length = _stated_length(collator) if pad_to is None else int(pad_to)
    if length is None:
        length = _most(collator, tokenizer, model)
        _logger.warning(
            f"Every record is padded to {length} tokens, the most that tokenizer and model take: the length of a "
            "micro-batch must not depend on its records. PrivacyArguments(pad_to=…) states a shorter one."
        )
    fixed: Any = copy.copy(collator)
    fixed.pad_to_multiple_of = length
    if hasattr(fixed, "max_length"):  # TRL's collator of pairs cuts to it
        fixed.max_length = length
    if hasattr(fixed, "padding"):
        fixed.padding, fixed.max_length, fixed.pad_to_multiple_of = "max_length", length, None
    # The targets of a sequence-to-sequence model are tokens of their own number.
    targets = ("labels", "decoder_input_ids") if isinstance(collator, DataCollatorForSeq2Seq) else ()
    return (lambda records: fixed([cut(record, length, targets) for record in records])), PaddingRule.of(
        length
    )


def cut(record: Any, length: int, targets: Collection[str] = ()) -> Any:
    """Cut everything of a record that has one entry a token; entries for the whole record stay.

    Args:
        targets: what is cut too, because it is a sequence of tokens of its own.
    """
    ids = record.get("input_ids") if isinstance(record, Mapping) else None
    if ids is None:
        return record

    def is_long(key: str, value: Any) -> bool:
        return (
            hasattr(value, "__len__") and len(value) > length and (len(value) == len(ids) or key in targets)
        )

    return {key: value[:length] if is_long(key, value) else value for key, value in record.items()}


def _pads(collator: Any) -> bool:
    return hasattr(collator, "pad_to_multiple_of") and getattr(collator, "padding", True) not in (
        False,
        "do_not_pad",
    )


def _stated_length(collator: Any) -> int | None:
    """Return the length that the collator was made with, `max_length=…`."""
    length: int | None = getattr(collator, "max_length", None)
    return length


def _most(collator: Any, tokenizer: Any, model: nn.Module) -> int:
    tokenizer = getattr(collator, "tokenizer", None) or tokenizer
    config = getattr(model, "config", None)
    known = [
        getattr(tokenizer, "model_max_length", None),
        getattr(config, "max_position_embeddings", None),
    ]
    length = min((int(most) for most in known if most is not None), default=None)
    if length is None or length > MOST_UNSTATED:
        found = (
            "no length is known" if length is None or length > 10**6 else f"tokenizer and model take {length}"
        )
        raise ValueError(
            f"Records must be padded to one length, and {found}. State one: PrivacyArguments(pad_to=128) pads and cuts "
            "to it; pad_to='longest' pads to the longest record of each micro-batch, and explain() says so."
        )
    return length
