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
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.shipped import embedded_source
from quietgrad.lab.data.source import Source
from quietgrad.lab.data.text_table import Tokenizer, is_text_table, read_text_table
from quietgrad.lab.errors import nearest


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
    text: str = "text",
    label: str = "label",
    words: Tokenizer | None = None,
    as_stored: bool = False,
    unit: str | None = None,
) -> Parts:
    """A data set as disjoint private, public and test parts.

    Args:
        name: a named data set, a .npz file or a folder of images (relative ones also under the data folders).
        data_dir: folder to look in before $QUIETGRAD_DATA, the user's cache and Debian's folder.
        private: number of private records, None for all that are left.
        public: number of public examples, None for those that come with the data, else none.
        public_from: another data set whose inputs stand in as public ones.
        test: number of test examples, None for those that come with the data, else a fifth.
        seed: of the random draws; the parts depend on nothing else.
        public_labels: whether the public part keeps its labels.
        text: the column of texts in a CSV, TSV or JSONL file.
        label: the column of labels there.
        words: the tokenizer of texts, hashed words if left out.
        as_stored: images in [0, 1] without further scaling.
        unit: the column that says whose each private record is, to protect users; None for single records.
    """
    texts = Texts(words, text, label)
    source, folder = _open(name, data_dir, texts, unit)
    if as_stored and source.normalisation is not None:
        source = replace(source, normalisation=stored(len(source.normalisation.mean)))
    choice = DataChoice(
        private=private, public=public, test=test, seed=seed, public_labels=public_labels, unit=unit
    )
    record: dict[str, object] = {"data": name, "folder": folder}
    if public_from is None:
        return assemble(source, choice, record)
    stand_in, stand_in_folder = _open(public_from, data_dir, texts)
    if folder == stand_in_folder:
        raise DataError(
            f"public_from={public_from!r} is the data set itself. Give public=N without public_from."
        )
    return assemble(source, choice, {**record, "public_from": public_from}, stand_in)


class Texts(NamedTuple):
    """How texts are read: the tokenizer, and the columns of a table."""

    words: Tokenizer | None
    text: str
    label: str


def _open(
    name: str, data_dir: str | Path | None, texts: Texts, unit: str | None = None
) -> tuple[Source, str]:
    """The data set and where it was found."""
    if name == EMBEDDED:
        return embedded_source(), "inside the package"
    if name in READERS:
        folder = locate(READERS[name], data_dir)
        reader = READERS[name]
        if texts.words is not None and reader.read_words is not None:
            return reader.read_words(folder, texts.words), str(folder)
        return reader.read(folder), str(folder)
    path = _own_path(name, data_dir)
    if path.is_file() and is_text_table(path):
        return read_text_table(path, texts.words, text=texts.text, label=texts.label, unit=unit), str(path)
    return (read_image_folder(path) if path.is_dir() else read_npz(path, unit)), str(path)


def _own_path(name: str, data_dir: str | Path | None) -> Path:
    """A user's own file or folder, as given or under one of the data folders."""
    candidates = [Path(name).expanduser(), *(root / name for root in search_path(data_dir))]
    path = next((path for path in candidates if path.is_dir() or path.is_file()), None)
    if path is not None and (path.is_dir() or path.suffix == ".npz" or is_text_table(path)):
        return path
    if path is not None:
        raise DataError(
            f"{path} is no .npz, .csv, .tsv or .jsonl file and no folder of images. Store arrays with numpy.savez."
        )
    if name.endswith(".npz") or "/" in name:
        raise DataError(f"{name} does not exist. Check the path or give data_dir.")
    known = [EMBEDDED, *READERS]
    raise DataError(
        f"Unknown data set {name!r}{nearest(name.lower(), known)}. Known: {', '.join(known)}, a .npz file or a "
        "folder of images."
    )
