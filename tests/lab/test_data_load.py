"""Splitting and finding: disjoint by row, recorded, repeatable, and clear when it cannot be done."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from quietgrad.lab.data import DataError, Parts, embedded, find_datasets, load
from quietgrad.lab.data.examples import digests

RNG = np.random.default_rng(6)


@pytest.fixture
def repeated(tmp_path: Path) -> str:
    """300 records, 100 different ones."""
    rows = RNG.normal(size=(100, 4))
    path = tmp_path / "repeated.npz"
    np.savez(path, x=np.tile(rows, (3, 1)), y=np.tile(np.arange(100) % 2, 3))
    return str(path)


def contents(parts: Parts) -> list[set[bytes]]:
    return [set(digests(part.tensors[0].numpy())) for part in (parts.private, parts.public, parts.test)]


@pytest.mark.parametrize("seed", range(5))
def test_parts_share_no_row(tmp_path: Path, seed: int) -> None:
    np.savez(tmp_path / "own.npz", x=RNG.normal(size=(300, 4)), y=np.arange(300) % 2)
    parts = load("own.npz", data_dir=tmp_path, public=20, test=30, seed=seed)
    assert all(not a & b for a, b in combinations(contents(parts), 2))
    assert (len(parts.private), len(parts.public), len(parts.test)) == (250, 20, 30)


def test_a_table_of_thirty_distinct_rows_trains_on_all_its_records(tmp_path: Path) -> None:
    rows = np.tile(RNG.normal(size=(30, 4)), (1000, 1))
    np.savez(tmp_path / "own.npz", x=rows, y=np.arange(30_000) % 2)
    parts = load("own.npz", data_dir=tmp_path, test=6000)
    assert (len(parts.private), len(parts.test)) == (24_000, 6_000)
    assert parts.sizes == "30,000 rows: 24,000 private, 6,000 for testing (not protected by ε)"
    drawn = load("own.npz", data_dir=tmp_path, public=1000, test=6000)
    assert drawn.sizes == (
        "30,000 rows: 23,000 private, 1,000 public, 6,000 for testing (public and test rows are not protected by ε)"
    )


def test_equal_private_records_stay_separate_records(repeated: str) -> None:
    assert len(load(repeated, test=1).private) == 299


def test_the_seed_decides_the_split(repeated: str) -> None:
    first, same, other = (load(repeated, private=50, public=10, test=60, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.private.tensors[0], same.private.tensors[0])
    assert contents(first) != contents(other)


def test_inputs_keep_their_labels(repeated: str) -> None:
    with np.load(repeated) as stored:
        label_of = dict(zip(digests(stored["x"].astype(np.float32)), stored["y"].tolist(), strict=True))
    parts = load(repeated, private=60, public=10, test=60, public_labels=True)
    for part in (parts.private, parts.public, parts.test):
        inputs, labels = part.tensors
        assert labels.tolist() == [label_of[digest] for digest in digests(inputs.numpy())]


def test_the_split_is_recorded(repeated: str) -> None:
    record = load(repeated, private=50, public=10, test=20, seed=3).record
    expected = {"data": repeated, "private": 50, "public": 10, "test": 20, "seed": 3, "public_labels": False}
    assert {key: record[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"private": 301}, "private=301, but there are"),
        ({"private": 0}, "private=0, but there are"),
        ({"private": -1}, "private=-1, but there are"),
        ({"public": 400}, "public=400, but there are"),
        ({"test": None}, r"data\.test is not stated.* set data\.test = 60, a fifth, or 0"),
        ({"test": 300}, "data.test = 300 leaves none of 300 to train on"),
        ({"test": 400}, "data.test = 400 leaves none of 300 to train on"),
        ({"public_from": "embedded"}, "Take public data of the same shape"),
        ({"public": 3, "public_from": "nothing"}, "Unknown data set 'nothing'"),
    ],
)
def test_impossible_choices_are_refused(repeated: str, sizes: dict[str, int | None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(repeated, **{"test": 60, **sizes})  # type: ignore[arg-type]


def test_no_private_record_left_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2)
    with pytest.raises(DataError, match="private=0, but there are 0"):
        load("own.npz", data_dir=tmp_path, test=1, public=9)


def test_embedded_by_name_is_the_embedded_data() -> None:
    named, direct = load("embedded"), embedded()
    for part in ("private", "public", "test"):
        assert torch.equal(getattr(named, part).tensors[0], getattr(direct, part).tensors[0])


def test_embedded_subsets() -> None:
    parts = load("embedded", private=100, public=5, test=50)
    assert (len(parts.private), len(parts.public), len(parts.test)) == (100, 5, 50)


def test_embedded_public_labels_are_there_only_when_asked_for() -> None:
    assert load("embedded").public_labels is None
    labels = load("embedded", public_labels=True).public_labels
    assert labels is not None
    assert labels.bincount().tolist() == [20] * 10


@pytest.fixture
def images(tmp_path: Path) -> str:
    path = tmp_path / "images.npz"
    np.savez(path, x=RNG.integers(0, 256, (60, 28, 28), dtype=np.uint8), y=np.arange(60) % 2)
    return str(path)


def test_another_data_set_may_stand_in_as_public(images: str) -> None:
    parts = load("embedded", private=100, public=7, public_from=images)
    assert (len(parts.public), parts.record["public_from"]) == (7, images)
    assert parts.public_labels is None
    assert float(parts.public_inputs.min()) == pytest.approx(-0.1307 / 0.3081, abs=1e-5)


def test_a_stand_in_needs_a_size(images: str) -> None:
    with pytest.raises(DataError, match="public_from needs public=N"):
        load("embedded", public_from=images)


def test_a_stand_in_has_no_labels_for_this_task(images: str) -> None:
    with pytest.raises(DataError, match="the labels of public_from mean something else"):
        load("embedded", public=5, public_from=images, public_labels=True)


def test_the_data_set_itself_is_no_stand_in(images: str) -> None:
    with pytest.raises(DataError, match="is the data set itself"):
        load(images, public=5, public_from=images)


def test_a_stand_in_with_test_content_is_refused(tmp_path: Path, images: str) -> None:
    with np.load(images) as stored:
        np.savez(tmp_path / "copy.npz", x=stored["x"], y=stored["y"])
    with pytest.raises(DataError, match="public data overlap the test data"):
        load(images, test=5, public=50, public_from=str(tmp_path / "copy.npz"))


@pytest.mark.parametrize(
    ("name", "nearest"), [("fashion_mnist", "fashion-mnist"), ("MNIST", "mnist"), ("cifar-10", "cifar10")]
)
def test_an_unknown_name_gets_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(DataError, match=rf"Unknown data set '{name}' .did you mean '{nearest}'"):
        load(name)


@pytest.mark.parametrize("name", ["mnist", "embedded.npz"])
def test_a_data_folder_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"data_dir='.*nowhere' is not a folder"):
        load(name, data_dir=tmp_path / "nowhere")


def test_a_wrong_variable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETGRAD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"\$QUIETGRAD_DATA=.* is not a folder"):
        find_datasets()


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, size in (("given", 10), ("variable", 20), ("cache/quietgrad", 30)):
        (tmp_path / folder).mkdir(parents=True)
        x = RNG.normal(size=(size, 2))
        np.savez(tmp_path / folder / "own.npz", x=x, y=np.arange(size) % 2, test_x=x[:1] + 9, test_y=[0])
    monkeypatch.setenv("QUIETGRAD_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(load("own.npz", data_dir=tmp_path / "given").private) == 10
    assert len(load("own.npz").private) == 20
    monkeypatch.delenv("QUIETGRAD_DATA")
    assert len(load("own.npz").private) == 30


def test_the_listing_says_what_is_found_and_how_to_get_the_rest(tmp_path: Path) -> None:
    listing = {entry.name: entry for entry in find_datasets(tmp_path)}
    assert list(listing) == [
        "embedded",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "svhn",
        "svhn-extended",
        "sst2",
        "mnli",
        "qqp",
        "qnli",
    ]
    assert listing["embedded"].folder == "inside the package"
    assert listing["cifar10"].folder is None
    assert all(entry.how_to_get for entry in listing.values())


def test_the_listing_survives_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"")
    mnist = next(entry for entry in find_datasets(tmp_path) if entry.name == "mnist")
    assert mnist.folder is None
    assert "train-labels-idx1-ubyte" in mnist.problem
