"""A tokenizer of two dozen words."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.integrations.tiny_text import VOCABULARY

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def tokenizer() -> Any:
    """Words w0, w1, … between [CLS] and [SEP]."""
    words = [*SPECIAL.values(), *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)
