"""SST-2's tables and the hashed words."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from quietgrad.lab.data import DataError, load
from quietgrad.lab.data.hashed_words import TOKENS, VOCABULARY, encode, word_id

HEADER = "sentence\tlabel\n"


def write(
    root: Path, train: str, dev: str = "a fine film \t1\nnot so good \t0\n", *, zipped: bool = False
) -> Path:
    folder = root / "SST-2"
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in (("train.tsv", train), ("dev.tsv", dev)):
        content = (HEADER + body).encode()
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


TRAIN = "hide new secretions \t0\nthat loves its characters \t1\nthe greatest musicians \t1\n"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("under", ["", "glue"])
def test_sentences_and_labels_are_read(tmp_path: Path, zipped: bool, under: str) -> None:
    write(tmp_path / under, TRAIN, zipped=zipped)
    parts = load("sst2", data_dir=tmp_path)
    inputs, labels = parts.private.tensors
    assert parts.input_shape == (TOKENS,)
    assert parts.num_classes == 2
    assert labels.tolist() == [0, 1, 1]
    assert inputs.dtype == torch.int64
    assert inputs[0, :4].tolist() == [word_id("hide"), word_id("new"), word_id("secretions"), 0]


def test_the_folder_itself_may_be_given(tmp_path: Path) -> None:
    assert len(load("sst2", data_dir=write(tmp_path, TRAIN)).private) == 3


def test_tables_of_another_task_are_not_taken_for_sst2(tmp_path: Path) -> None:
    write(tmp_path, TRAIN).rename(tmp_path / "CoLA")
    with pytest.raises(DataError, match="sst2 was not found"):
        load("sst2", data_dir=tmp_path / "CoLA")


def test_words_are_hashed_alike_in_every_process() -> None:
    # Written down once: Python's own hash() would differ between processes.
    assert [word_id("film"), word_id("Film"), word_id("good")] == [397, 397, 7619]


def test_long_and_empty_texts_fit() -> None:
    ids = encode(["w " * 100, ""])
    assert ids.shape == (2, TOKENS)
    assert (ids[0] > 0).all()
    assert (ids[1] == 0).all()
    assert 0 < ids[0].max() < VOCABULARY


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("good\t1\nbad\t2\n", "line 3: expected sentence<tab>0 or 1. Repair"),
        ("good 1\n", "line 2: expected"),
        ("good\t1\nfine film\t", "line 3: expected"),
        ("good\t1\n\n", "line 3: expected"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, train: str, message: str) -> None:
    write(tmp_path, train)
    with pytest.raises(DataError, match=message) as refusal:
        load("sst2", data_dir=tmp_path)
    assert not any(word in str(refusal.value) for word in ("good", "bad", "film"))  # a record is private


def test_a_table_without_labels_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, TRAIN)
    (folder / "dev.tsv").write_text("index\tsentence\n0\tgood\n")
    with pytest.raises(DataError, match="does not start with the header sentence<tab>label"):
        load("sst2", data_dir=tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, TRAIN)
    (folder / "train.tsv").write_bytes(b"sentence\tlabel\n\xff\xfe\t1\n")
    with pytest.raises(DataError, match="not UTF-8 text"):
        load("sst2", data_dir=tmp_path)


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, TRAIN, zipped=True) / "train.tsv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        load("sst2", data_dir=tmp_path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    (write(tmp_path, TRAIN) / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"neither dev.tsv nor dev.tsv.gz"):
        load("sst2", data_dir=tmp_path)
