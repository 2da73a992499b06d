"""WordPiece with BERT's special tokens, from a public vocabulary: `[CLS] text [SEP]`.

Two texts are joined by ` [SEP] ` before they are encoded, which gives BERT's `[CLS] a [SEP] b [SEP]`. A row holds token
numbers alone: the attention mask is where they are not `[PAD]`, and the token types follow from the first `[SEP]`, so a
model finds both in the row (`token_types`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.lab.data.errors import DataError

PADDING = 0
TOKENS = 128
BETWEEN = " [SEP] "
"""Joins the two texts of a pair."""


class WordPieces:
    """Encodes with a vocabulary file: BERT's `vocab.txt` or a `tokenizer.json`, or a folder that holds one.

    Args:
        path: the file or folder. It must be public: a vocabulary made of private texts would tell of them.
        tokens: length of a row; longer texts are cut, shorter ones padded.
    """

    def __init__(self, path: str | Path, tokens: int = TOKENS) -> None:
        self.path, self.tokens = _file(Path(path).expanduser()), tokens
        self._tokenizer = _load(self.path)
        if self._tokenizer.token_to_id("[PAD]") != PADDING:
            raise DataError(f"{self.path} does not number [PAD] as 0. Use a vocabulary of BERT's kind.")
        self._tokenizer.enable_truncation(tokens)
        self._tokenizer.enable_padding(pad_id=PADDING, pad_token="[PAD]", length=tokens)

    @property
    def vocabulary(self) -> int:
        """The number of token numbers."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def separator(self) -> int:
        """The number of `[SEP]`."""
        return int(self._tokenizer.token_to_id("[SEP]"))

    def encode(self, texts: Sequence[str], /) -> Int64[ndarray, "n t"]:
        """Token numbers of each text."""
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        return np.array(rows, dtype=np.int64).reshape(len(rows), self.tokens)

    def describe(self) -> str:
        """One line for the report."""
        return (
            f"WordPiece, {self.vocabulary} pieces, first {self.tokens} of a text, [SEP] is {self.separator}"
        )


def _file(path: Path) -> Path:
    candidates = [path, path / "tokenizer.json", path / "vocab.txt"]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        raise DataError(
            f"data.tokenizer={str(path)!r} is no vocab.txt or tokenizer.json, nor a folder with one."
        )
    return found


def _load(path: Path) -> Any:
    try:
        tokenizers: Any = importlib.import_module("tokenizers")
    except ImportError as error:
        raise DataError(
            "data.tokenizer needs the package tokenizers. Install it: pip install 'quietgrad[hugging-face]'."
        ) from error
    try:
        if path.suffix == ".json":
            return tokenizers.Tokenizer.from_file(str(path))
        return tokenizers.BertWordPieceTokenizer(str(path), lowercase=True)._tokenizer
    except Exception as error:  # the library raises plain Exceptions
        raise DataError(f"{path} cannot be read as a vocabulary ({error}). Use BERT's vocab.txt.") from error
