"""The Fashion-MNIST subset inside the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad.lab.data.normalisation import MNIST_CONSTANTS
from quietgrad.lab.data.parts import Parts


def embedded() -> Parts:
    """12,000 private, 200 unlabelled public and 2,000 test images of Fashion-MNIST, always the same."""
    with (
        (files("quietgrad.lab") / "embedded" / "fashion_mnist.npz").open("rb") as file,
        np.load(file) as stored,
    ):
        arrays = {name: stored[name] for name in stored.files}
    images = {part: MNIST_CONSTANTS.apply(arrays[f"{part}_x"]) for part in ("private", "public", "test")}
    return Parts(
        private=TensorDataset(images["private"], _labels(arrays["private_y"])),
        public=TensorDataset(images["public"]),
        test=TensorDataset(images["test"], _labels(arrays["test_y"])),
        num_classes=10,
        input_shape=(1, 28, 28),
        record={
            "data": "embedded",
            "origin": "class-balanced subset of Fashion-MNIST (Zalando SE, MIT licence)",
            "private": len(images["private"]),
            "public": len(images["public"]),
            "test": len(images["test"]),
            "public_labels": False,
            "split": "fixed; no image is in two parts (scripts/make_embedded.py)",
            "normalisation": MNIST_CONSTANTS.describe(),
        },
    )


def _labels(stored: np.ndarray) -> Tensor:
    return torch.from_numpy(stored.astype(np.int64))
