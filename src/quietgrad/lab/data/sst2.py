"""SST-2 (GLUE): sentences of film reviews, negative or positive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quietgrad.lab.data import hashed_words
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.files import plain_or_gzipped, read_bytes, require
from quietgrad.lab.data.source import Reader, Source
from quietgrad.lab.data.text_table import Words

NUM_CLASSES = 2
FOLDERS = ("SST-2", "sst2", "glue/SST-2", "GLUE/SST-2")


def read_tsv(path: Path, words: Words | None = None) -> Examples:
    """Tokens and labels of one file with the header sentence<tab>label."""
    try:
        lines = read_bytes(path).decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}). Download it again.") from error
    if lines[0].rstrip("\r") != "sentence\tlabel":
        raise DataError(
            f"{path} does not start with the header sentence<tab>label. "
            "Use train.tsv and dev.tsv of GLUE's SST-2 (its test.tsv has no labels)."
        )
    rows = [_fields(path, number, line) for number, line in enumerate(lines[1:], start=2)]
    tokens = (words or hashed_words).encode([sentence for sentence, _ in rows])
    return checked(tokens, np.array([label for _, label in rows], dtype=np.int64), NUM_CLASSES, path)


def _fields(path: Path, number: int, line: str) -> tuple[str, int]:
    sentence, tab, label = line.rstrip("\r").rpartition("\t")
    if not tab or label not in ("0", "1"):
        raise DataError(f"{path}, line {number}: expected sentence<tab>0 or 1. Repair the line.")
    return sentence, int(label)


def _locate(root: Path) -> Path | None:
    # train.tsv is every GLUE task's file name, so the folder must be called SST-2.
    candidates = [*(root / folder for folder in FOLDERS), *([root] if root.name in FOLDERS else [])]
    return next((folder for folder in candidates if plain_or_gzipped(folder, "train.tsv")), None)


def _read(folder: Path, words: Words | None = None) -> Source:
    return Source(
        train=read_tsv(require(folder, "train.tsv"), words),
        test=read_tsv(require(folder, "dev.tsv"), words),
        num_classes=NUM_CLASSES,
        normalisation=None,
        notes=(words or hashed_words).describe(),
    )


SST2 = Reader(
    name="sst2",
    title="SST-2, 67,349 + 872 sentences of film reviews, 2 classes",
    locate=_locate,
    read=_read,
    read_words=_read,
    how_to_get="put GLUE's train.tsv and dev.tsv (https://gluebenchmark.com) into the data folder's SST-2",
)
