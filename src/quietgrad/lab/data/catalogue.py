"""The named data sets and the folders where they are looked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quietgrad.lab.data.cifar10 import CIFAR10
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.glue import GLUE
from quietgrad.lab.data.idx import FASHION_MNIST, MNIST
from quietgrad.lab.data.source import Reader
from quietgrad.lab.data.svhn import SVHN, SVHN_EXTENDED

READERS: dict[str, Reader] = {
    reader.name: reader for reader in (MNIST, FASHION_MNIST, CIFAR10, SVHN, SVHN_EXTENDED, *GLUE)
}
EMBEDDED = "embedded"
VARIABLE = "QUIETGRAD_DATA"
DEBIAN = Path("/usr/share/datasets")  # where Debian's dataset-fashion-mnist installs


@dataclass(frozen=True, kw_only=True)
class DatasetListing:
    """One line of a listing.

    Args:
        name: what to write in a config.
        title: what it is.
        folder: where it was found, None if nowhere ("inside the package" for the embedded data).
        problem: why what lies there cannot be used, empty if nothing was noticed.
        how_to_get: for who does not have it.
    """

    name: str
    title: str
    folder: str | None
    problem: str
    how_to_get: str


def search_path(data_dir: str | Path | None) -> list[Path]:
    """The folders to look in: the given one, $QUIETGRAD_DATA, the user's cache, Debian's."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError(f"data_dir={str(data_dir)!r} is not a folder. Check the path.")
    variable = os.environ.get(VARIABLE)
    if variable and not Path(variable).is_dir():
        raise DataError(f"${VARIABLE}={variable!r} is not a folder. Correct or unset the variable.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietgrad"
    given = [Path(folder) for folder in (data_dir, variable) if folder]
    return [*given, cache, DEBIAN]


def locate(reader: Reader, data_dir: str | Path | None) -> Path:
    """The data set's folder, or an error that says where it was looked for and how to get it."""
    roots = search_path(data_dir)
    for root in roots:
        folder = reader.locate(root)
        if folder is not None:
            return folder
    looked = ", ".join(str(root) for root in roots)
    raise DataError(f"{reader.name} was not found in {looked}. To get it: {reader.how_to_get}.")


def find_datasets(data_dir: str | Path | None = None) -> list[DatasetListing]:
    """Every named data set: where it was found, or how to get it."""
    shipped = DatasetListing(
        name=EMBEDDED,
        title="12,000 private, 200 public and 2,000 test images of Fashion-MNIST",
        folder="inside the package",
        problem="",
        how_to_get="comes with quietgrad",
    )
    roots = search_path(data_dir)
    return [shipped, *(_find(reader, roots) for reader in READERS.values())]


def _find(reader: Reader, roots: list[Path]) -> DatasetListing:
    folder, problem = None, ""
    for root in roots:
        try:
            folder = reader.locate(root)
        except DataError as error:
            problem = str(error)
        if folder is not None:
            break
    return DatasetListing(
        name=reader.name,
        title=reader.title,
        folder=None if folder is None else str(folder),
        problem=problem,
        how_to_get=reader.how_to_get,
    )
