"""The Fashion-MNIST subset inside the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.lab.data.assembling import DataChoice, assemble
from quietgrad.lab.data.examples import Examples
from quietgrad.lab.data.normalisation import MNIST_CONSTANTS
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.source import Source


def embedded_source() -> Source:
    """The stored arrays; they share no image (scripts/make_embedded.py)."""
    with (
        (files("quietgrad.lab.data") / "embedded" / "fashion_mnist.npz").open("rb") as file,
        np.load(file) as stored,
    ):
        arrays = {name: stored[name] for name in stored.files}
    return Source(
        train=Examples(
            arrays["private_x"], arrays["private_y"].astype(np.int64), {"person": made_up_users()}
        ),
        test=Examples(arrays["test_x"], arrays["test_y"].astype(np.int64)),
        public_inputs=arrays["public_x"],
        public_labels=arrays["public_y"].astype(np.int64),
        num_classes=10,
        normalisation=MNIST_CONSTANTS,
        notes="class-balanced subset of Fashion-MNIST (Zalando SE, MIT licence)",
    )


def made_up_users(records: int = 12_000, most: int = 50) -> Int64[ndarray, " n"]:
    """Make up users of 1 to 50 images each, to try out user-level privacy."""
    rng = np.random.default_rng(21)
    sizes = rng.integers(1, most + 1, records)
    return rng.permutation(np.repeat(np.arange(records), sizes)[:records])


def embedded() -> Parts:
    """12,000 private, 200 public (without labels) and 2,000 test images of Fashion-MNIST, always the same."""
    return assemble(embedded_source(), DataChoice(), {"data": "embedded"})
