"""GLUE's tasks as its files have them: SST-2, and MNLI, QQP and QNLI with pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quietgrad.lab.data import hashed_words
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.files import plain_or_gzipped, read_text, require
from quietgrad.lab.data.source import Reader, Source
from quietgrad.lab.data.text_table import Tokenizer
from quietgrad.lab.data.word_pieces import BETWEEN


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """A task's folder and files.

    Args:
        folder: as GLUE calls it.
        labels: what the label column says → class.
        rows: the texts and classes of a file.
        test: the file that stands in for the test set, whose labels GLUE keeps.
    """

    name: str
    folder: str
    title: str
    labels: Mapping[str, int]
    rows: Callable[[Path, list[str], Mapping[str, int]], list[tuple[str, int]]]
    test: str = "dev.tsv"

    def reader(self) -> Reader:
        where = f"(https://gluebenchmark.com) into the data folder's {self.folder}"
        how = f"put GLUE's train.tsv and {self.test} {where}"
        return Reader(
            name=self.name,
            title=self.title,
            locate=self.locate,
            read=self.read,
            read_words=self.read,
            how_to_get=how,
        )

    def locate(self, root: Path) -> Path | None:
        """Find the folder, which must be called as the task: train.tsv is every task's file name."""
        names = (self.folder, self.name, f"glue/{self.folder}", f"GLUE/{self.folder}")
        candidates = [*(root / name for name in names), *([root] if root.name in names else [])]
        return next((folder for folder in candidates if plain_or_gzipped(folder, "train.tsv")), None)

    def read(self, folder: Path, words: Tokenizer | None = None) -> Source:
        return Source(
            train=self._examples(require(folder, "train.tsv"), words),
            test=self._examples(require(folder, self.test), words),
            num_classes=len(self.labels),
            normalisation=None,
            notes=(words or hashed_words).describe(),
        )

    def _examples(self, path: Path, words: Tokenizer | None) -> Examples:
        lines = read_text(path).removesuffix("\n").split("\n")
        rows = self.rows(path, [line.rstrip("\r") for line in lines], self.labels)
        tokens = (words or hashed_words).encode([text for text, _ in rows])
        labels = np.array([label for _, label in rows], dtype=np.int64)
        return checked(tokens, labels, len(self.labels), path)


def _sentences(path: Path, lines: list[str], labels: Mapping[str, int]) -> list[tuple[str, int]]:
    """SST-2's rows: sentences, which may hold tabs, and their labels."""
    if lines[0] != "sentence\tlabel":
        raise DataError(
            f"{path} does not start with the header sentence<tab>label. "
            "Use train.tsv and dev.tsv of GLUE's SST-2 (its test.tsv has no labels)."
        )
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        sentence, tab, label = line.rpartition("\t")
        if not tab or label not in labels:
            raise DataError(f"{path}, line {number}: expected sentence<tab>0 or 1. Repair the line.")
        rows.append((sentence, labels[label]))
    return rows


@dataclass(frozen=True)
class _Pairs:
    """Rows of two texts, by the names of three columns; rows that lack columns, as some of QQP's do, are skipped."""

    first: str
    second: str
    label: str

    def __call__(self, path: Path, lines: list[str], labels: Mapping[str, int]) -> list[tuple[str, int]]:
        header = lines[0].split("\t")
        for name in (self.first, self.second, self.label):
            if name not in header:
                raise DataError(
                    f"{path} has no column {name!r}. Use GLUE's files (its test.tsv has no labels)."
                )
        fields = [row for line in lines[1:] if len(row := line.split("\t")) == len(header)]
        columns = [dict(zip(header, row, strict=True)) for row in fields]
        if any(row[self.label] not in labels for row in columns):
            raise DataError(f"{path}: some labels are not among {', '.join(labels)}. Repair the file.")
        return [(f"{row[self.first]}{BETWEEN}{row[self.second]}", labels[row[self.label]]) for row in columns]


TASKS = (
    GlueTask(
        name="sst2",
        folder="SST-2",
        title="SST-2, 67,349 + 872 sentences of film reviews, 2 classes",
        labels={"0": 0, "1": 1},
        rows=_sentences,
    ),
    GlueTask(
        name="mnli",
        folder="MNLI",
        title="MNLI, 392,702 + 9,815 pairs of sentences, 3 classes",
        labels={"contradiction": 0, "entailment": 1, "neutral": 2},
        rows=_Pairs("sentence1", "sentence2", "gold_label"),
        test="dev_matched.tsv",
    ),
    GlueTask(
        name="qqp",
        folder="QQP",
        title="QQP, 363,846 + 40,430 pairs of questions, 2 classes",
        labels={"0": 0, "1": 1},
        rows=_Pairs("question1", "question2", "is_duplicate"),
    ),
    GlueTask(
        name="qnli",
        folder="QNLI",
        title="QNLI, 104,743 + 5,463 questions with a sentence, 2 classes",
        labels={"entailment": 0, "not_entailment": 1},
        rows=_Pairs("question", "sentence", "label"),
    ),
)
GLUE = tuple(task.reader() for task in TASKS)
