"""GLUE's tasks with pairs of texts, as its files have them: MNLI, QQP, QNLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quietgrad.lab.data import hashed_words
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.files import plain_or_gzipped, read_bytes, require
from quietgrad.lab.data.source import Reader, Source
from quietgrad.lab.data.text_table import Words
from quietgrad.lab.data.word_pieces import BETWEEN


@dataclass(frozen=True, kw_only=True)
class Task:
    """Columns and classes of a task's files.

    Args:
        folder: as GLUE calls it.
        labels: what the label column says → class.
        test: the file that stands in for the test set, whose labels GLUE keeps.
    """

    name: str
    folder: str
    title: str
    first: str
    second: str
    label: str
    labels: Mapping[str, int]
    test: str = "dev.tsv"

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.folder, self.name, f"glue/{self.folder}", f"GLUE/{self.folder}")

    def locate(self, root: Path) -> Path | None:
        """train.tsv is every task's file name, so the folder must be called as the task."""
        candidates = [
            *(root / folder for folder in self.folders),
            *([root] if root.name in self.folders else []),
        ]
        return next((folder for folder in candidates if plain_or_gzipped(folder, "train.tsv")), None)

    def read(self, folder: Path, words: Words | None = None) -> Source:
        return Source(
            train=self.read_tsv(require(folder, "train.tsv"), words),
            test=self.read_tsv(require(folder, self.test), words),
            num_classes=len(self.labels),
            normalisation=None,
            notes=(words or hashed_words).describe(),
        )

    def read_tsv(self, path: Path, words: Words | None = None) -> Examples:
        """Tokens and labels; lines that lack columns, as some of QQP's do, are left out."""
        try:
            lines = read_bytes(path).decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text ({error.reason}). Download it again.") from error
        header = lines[0].rstrip("\r").split("\t")
        columns = [self._column(path, header, name) for name in (self.first, self.second, self.label)]
        rows = [fields for line in lines[1:] if len(fields := line.rstrip("\r").split("\t")) == len(header)]
        texts = [f"{fields[columns[0]]}{BETWEEN}{fields[columns[1]]}" for fields in rows]
        labels = [self._class(path, fields[columns[2]]) for fields in rows]
        tokens = (words or hashed_words).encode(texts)
        return checked(tokens, np.array(labels, dtype=np.int64), len(self.labels), path)

    def _column(self, path: Path, header: list[str], name: str) -> int:
        if name not in header:
            raise DataError(f"{path} has no column {name!r}. Use GLUE's files (its test.tsv has no labels).")
        return header.index(name)

    def _class(self, path: Path, text: str) -> int:
        if text not in self.labels:
            raise DataError(
                f"{path}: a label is {text!r}, expected {', '.join(self.labels)}. Repair the file."
            )
        return self.labels[text]


TASKS = (
    Task(
        name="mnli",
        folder="MNLI",
        title="MNLI, 392,702 + 9,815 pairs of sentences, 3 classes",
        first="sentence1",
        second="sentence2",
        label="gold_label",
        labels={"contradiction": 0, "entailment": 1, "neutral": 2},
        test="dev_matched.tsv",
    ),
    Task(
        name="qqp",
        folder="QQP",
        title="QQP, 363,846 + 40,430 pairs of questions, 2 classes",
        first="question1",
        second="question2",
        label="is_duplicate",
        labels={"0": 0, "1": 1},
    ),
    Task(
        name="qnli",
        folder="QNLI",
        title="QNLI, 104,743 + 5,463 questions with a sentence, 2 classes",
        first="question",
        second="sentence",
        label="label",
        labels={"entailment": 0, "not_entailment": 1},
    ),
)


def _reader(task: Task) -> Reader:
    return Reader(
        name=task.name,
        title=task.title,
        locate=task.locate,
        read=task.read,
        read_words=task.read,
        how_to_get=f"put GLUE's {task.folder} (https://gluebenchmark.com) into the data folder's {task.folder}",
    )


GLUE_PAIRS = tuple(_reader(task) for task in TASKS)
