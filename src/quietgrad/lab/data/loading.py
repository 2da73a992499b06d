"""Data sets by name or path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from quietgrad.lab.data.assembling import DataChoice, assemble
from quietgrad.lab.data.catalogue import EMBEDDED, READERS, locate, search_path
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.image_folder import read_image_folder
from quietgrad.lab.data.normalisation import stored
from quietgrad.lab.data.npz import read_npz
from quietgrad.lab.data.own_table import read_table
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.shipped import embedded_source
from quietgrad.lab.data.source import Source
from quietgrad.lab.data.stated_and_found import check_test_labels
from quietgrad.lab.data.table_file import is_table_file
from quietgrad.lab.data.text_table import Tokenizer, is_text_table, read_text_table
from quietgrad.lab.errors import nearest
from quietgrad.tables import Schema


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    private: int | None = None,
    public: int | None = None,
    public_from: str | None = None,
    test: int | None = None,
    seed: int = 0,
    public_labels: bool = False,
    text: str | None = None,
    label: str = "label",
    words: Tokenizer | None = None,
    as_stored: bool = False,
    unit: str | None = None,
    columns: Schema | None = None,
) -> Parts:
    """A data set as disjoint private, public and test parts.

    Args:
        name: a named data set, a table, a .npz file or a folder of images (relative ones also under the data folders).
        data_dir: folder to look in before $QUIETGRAD_DATA, the user's cache and Debian's folder.
        private: number of private records, None for all that are left.
        public: number of public examples, None for those that come with the data, else none.
        public_from: another data set whose inputs stand in as public ones.
        test: number of test examples, None for those that come with the data, 0 for none.
        seed: of the random draws; the parts depend on nothing else.
        public_labels: whether the public part keeps its labels.
        text: the column of texts in a CSV, TSV or JSONL file that is read as texts.
        label: the column of labels there.
        words: the tokenizer of texts, hashed words if left out.
        as_stored: images in [0, 1] without further scaling.
        unit: the column that says whose each private record is, to protect users; None for single records.
        columns: what is stated of a table's columns; a CSV, TSV, JSONL or Parquet file is then read as a table.
    """
    how = Reading(words, text, label, columns or None)
    source, folder = _open(name, data_dir, how, unit)
    if as_stored and source.normalisation is not None:
        source = replace(source, normalisation=stored(len(source.normalisation.mean)))
    choice = DataChoice(
        private=private, public=public, test=test, seed=seed, public_labels=public_labels, unit=unit
    )
    record: dict[str, object] = {"data": name, "folder": folder}
    if public_from is None:
        parts = assemble(source, choice, record)
        if parts.schema is not None:
            check_test_labels(parts, label)
        return parts
    stand_in, stand_in_folder = _open(public_from, data_dir, how)
    if folder == stand_in_folder:
        raise DataError(
            f"public_from={public_from!r} is the data set itself. Give public=N without public_from."
        )
    return assemble(source, choice, {**record, "public_from": public_from}, stand_in)


class Reading(NamedTuple):
    """How a file of rows is read: as texts with a tokenizer, or as a table by what is stated of its columns."""

    words: Tokenizer | None
    text: str | None
    label: str
    columns: Schema | None


def _open(
    name: str, data_dir: str | Path | None, how: Reading, unit: str | None = None
) -> tuple[Source, str]:
    """The data set and where it was found."""
    if name == EMBEDDED:
        return embedded_source(), "inside the package"
    if name in READERS:
        folder = locate(READERS[name], data_dir)
        reader = READERS[name]
        if how.words is not None and reader.read_words is not None:
            return reader.read_words(folder, how.words), str(folder)
        return reader.read(folder), str(folder)
    path = _own_path(name, data_dir)
    if path.is_file() and is_table_file(path):
        return _read_rows(path, how, unit), str(path)
    return (read_image_folder(path) if path.is_dir() else read_npz(path, unit)), str(path)


def _read_rows(path: Path, how: Reading, unit: str | None) -> Source:
    """A table if columns are stated, texts if their column is."""
    if how.columns is not None:
        return read_table(path, how.columns, label=how.label, unit=unit)
    if how.text is None or not is_text_table(path):
        raise DataError(
            f"{path}: nothing is stated of its columns. Write [columns] (quietgrad columns {path} begins it), or "
            'set data.text = "text" to read that column as texts.'
        )
    return read_text_table(path, how.words, text=how.text, label=how.label, unit=unit)


def _own_path(name: str, data_dir: str | Path | None) -> Path:
    """A user's own file or folder, as given or under one of the data folders."""
    candidates = [Path(name).expanduser(), *(root / name for root in search_path(data_dir))]
    path = next((path for path in candidates if path.is_dir() or path.is_file()), None)
    if path is not None and (path.is_dir() or path.suffix == ".npz" or is_table_file(path)):
        return path
    if path is not None:
        raise DataError(
            f"{path} is no .csv, .tsv, .jsonl, .parquet or .npz file and no folder of images. Store tables as CSV."
        )
    if "/" in name or Path(name).suffix == ".npz" or is_table_file(Path(name)):
        raise DataError(f"{name} does not exist. Check the path or give data_dir.")
    known = [EMBEDDED, *READERS]
    raise DataError(
        f"Unknown data set {name!r}{nearest(name.lower(), known)}. Known: {', '.join(known)}, a table, a .npz "
        "file or a folder of images."
    )
