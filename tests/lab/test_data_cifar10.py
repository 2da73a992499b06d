"""CIFAR-10 batches, pickled and binary; a pickle may not run code."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quietgrad.lab.data import DataError, load

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, (6, 4, 3072), dtype=np.uint8)
LABELS = RNG.integers(0, 10, (6, 4))


def pickled(data: object, labels: object, **more: object) -> bytes:
    batch: dict[str | bytes, object] = {b"data": data, b"labels": labels, b"filenames": [b"a.png"]}
    batch.update(more)
    return pickle.dumps(batch, protocol=2)


def write_python(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, data, labels in zip(NAMES, PIXELS, LABELS, strict=True):
        (folder / name).write_bytes(pickled(data, labels.tolist()))
    return folder


def write_binary(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, data, labels in zip(NAMES, PIXELS, LABELS, strict=True):
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels.astype(np.uint8), data]).tobytes())
    return folder


@pytest.mark.parametrize("write", [write_python, write_binary])
@pytest.mark.parametrize("under", ["", "CIFAR10", "cifar10"])
def test_both_formats_give_the_same_images(tmp_path: Path, write: Callable[[Path], Path], under: str) -> None:
    write(tmp_path / under)
    parts = load("cifar10", data_dir=tmp_path)
    assert parts.input_shape == (3, 32, 32)
    assert parts.private.tensors[1].tolist() == LABELS[:5].ravel().tolist()
    expected = PIXELS[5].reshape(4, 3, 32, 32) / 255
    mean, std = (np.array(v).reshape(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    np.testing.assert_allclose(parts.test.tensors[0].numpy(), (expected - mean) / std, atol=1e-5)


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    folder = write_python(tmp_path)
    # Python 2 wrote text as 8-bit strings, which Python 3 cannot write: replace _codecs.encode of b"..." by U opcodes.
    raw = PIXELS[0].tobytes()
    old = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff"
        b"\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tbU\x06labelsq\x08]q\x09(K\x01K"
        b"\x02K\x03K\x04eu."
    )
    (folder / "data_batch_1").write_bytes(old)
    parts = load("cifar10", data_dir=tmp_path)
    assert parts.private.tensors[1][:4].tolist() == [1, 2, 3, 4]


class Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = write_python(tmp_path)
    (folder / "data_batch_3").write_bytes(pickled(PIXELS[0], [0] * 4, extra=Command(tmp_path / "ran")))
    with pytest.raises(DataError, match=r"data_batch_3 is not a CIFAR-10 python batch .it contains"):
        load("cifar10", data_dir=tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickled(PIXELS[0], [0] * 4)[:-500], "not a CIFAR-10 python batch"),
        (b"", "not a CIFAR-10 python batch"),
        (b"<html>", "not a CIFAR-10 python batch"),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickled(PIXELS[0][:, :100], [0] * 4), "no data of 3072 bytes a row"),
        (pickled(PIXELS[0].astype(np.float32), [0] * 4), "no data of 3072 bytes a row"),
        (pickle.dumps({b"data": PIXELS[0], b"fine_labels": [0] * 4}, protocol=2), "no list of labels"),
        (pickled(PIXELS[0], [0, 1, 2, 10]), "some labels are not among 0 to 9"),
        (pickled(PIXELS[0], [0, 1, 2]), "4 inputs, labels of shape"),
        (pickled(PIXELS[0][:3], [0, 1, 2]), "the five batches have .4, 3, 4, 4, 4. images"),
    ],
)
def test_damaged_python_batches_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    folder = write_python(tmp_path)
    (folder / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no multiple of 3073"),
        (bytes(4 * 3073 - 1), "no multiple of 3073"),
        (bytes(3 * 3073), "the five batches have .4, 3, 4, 4, 4. images"),
        (b"\x0b" + bytes(4 * 3073 - 1), "some labels are not among 0 to 9"),
    ],
)
def test_damaged_binary_batches_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    folder = write_binary(tmp_path)
    (folder / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("write", "name"), [(write_python, "data_batch_4"), (write_binary, "test_batch.bin")]
)
def test_a_missing_batch_is_named(tmp_path: Path, write: Callable[[Path], Path], name: str) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing. Download"):
        load("cifar10", data_dir=tmp_path)
