"""The data inside the package: sizes, balance, disjointness, credit."""

from __future__ import annotations

from importlib.resources import files

import torch

from quietgrad.lab.data import Parts, embedded
from quietgrad.lab.data.examples import digests


def contents(parts: Parts) -> dict[str, set[bytes]]:
    return {
        part: set(digests(getattr(parts, part).tensors[0].numpy())) for part in ("private", "public", "test")
    }


def test_embedded_data_has_the_promised_sizes_and_types() -> None:
    parts = embedded()
    assert (len(parts.private), len(parts.public), len(parts.test)) == (12_000, 200, 2_000)
    assert parts.input_shape == tuple(parts.private.tensors[0].shape[1:]) == (1, 28, 28)
    assert parts.private.tensors[0].dtype == torch.float32
    assert parts.private.tensors[1].dtype == torch.int64


def test_embedded_classes_are_balanced() -> None:
    parts = embedded()
    assert parts.private.tensors[1].bincount().tolist() == [1_200] * 10
    assert parts.test.tensors[1].bincount().tolist() == [200] * 10


def test_embedded_public_part_has_no_labels() -> None:
    parts = embedded()
    assert parts.public_labels is None
    assert parts.public_inputs.shape == (200, 1, 28, 28)


def test_embedded_parts_share_no_image() -> None:
    found = contents(embedded())
    assert not found["private"] & found["public"]
    assert not found["private"] & found["test"]
    assert not found["public"] & found["test"]


def test_embedded_data_is_small_and_credited() -> None:
    folder = files("quietgrad.lab.data") / "embedded"
    assert len((folder / "fashion_mnist.npz").read_bytes()) < 10_000_000
    assert "MIT License" in (folder / "CREDITS.txt").read_text()


def test_embedded_images_are_scaled_by_fixed_constants() -> None:
    lowest, highest = embedded().private.tensors[0].aminmax()
    torch.testing.assert_close(lowest, torch.tensor(-0.1307 / 0.3081))
    torch.testing.assert_close(highest, torch.tensor((1 - 0.1307) / 0.3081))
