"""Per-sample gradients of every kind and algorithm, from rows that a test makes up: what law 2 runs over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._gradients.tied import TiedGrad
from quietgrad._kernels.patches import Window
from quietgrad._representations.masks.restriction import Kept, restrict

Tensors = dict[str, Tensor]
"""What a kind is made of; the first dimension holds the samples."""


def every_seventh(device: torch.device) -> Kept:
    return Kept.of(torch.arange(0, 120, 7), torch.Size((10, 12)), device)


@dataclass(frozen=True)
class KindCase:
    """One kind of block with one algorithm.

    Args:
        draw: (samples, generator) → its tensors, standard normal.
        build: its tensors → the block.
        scaled: the tensor that carries a sample's scale.
    """

    name: str
    draw: Callable[[int, Generator], Tensors]
    build: Callable[[Tensors], BlockGrads]
    scaled: str = "b"

    def __str__(self) -> str:
        return self.name

    def grads(self, tensors: Tensors) -> BlockwiseGrads:
        block = self.build(tensors)
        return BlockwiseGrads({"w": block}, block.samples)


def dense(*shape: int) -> Callable[[int, Generator], Tensors]:
    return lambda n, g: {"b": torch.randn(n, *shape, generator=g)}


def factors(t: int, i: int, o: int) -> Callable[[int, Generator], Tensors]:
    return lambda n, g: {"a": torch.randn(n, t, i, generator=g), "b": torch.randn(n, t, o, generator=g)}


def maps(channels: int, outputs: int, size: int) -> Callable[[int, Generator], Tensors]:
    return lambda n, g: {
        "a": torch.randn(n, 1, channels, size, size, generator=g),
        "b": torch.randn(n, 1, outputs, size - 2, size - 2, generator=g),
    }


def factored(algorithm: str) -> Callable[[Tensors], BlockGrads]:
    return lambda x: FactoredGrad(x["a"], x["b"], algorithm=algorithm)


def convolution(algorithm: str) -> Callable[[Tensors], BlockGrads]:
    def build(x: Tensors) -> BlockGrads:
        kernel = torch.Size((x["b"].shape[2], x["a"].shape[2], 3, 3))
        return ConvGrad(x["a"], x["b"], Window(kernel, (1, 1), (0, 0), (1, 1), 1), algorithm=algorithm)

    return build


def words(n: int, g: Generator) -> Tensors:
    return {"ids": torch.randint(0, 5, (n, 6), generator=g), "b": torch.randn(n, 6, 4, generator=g)}


def table(x: Tensors) -> IndexedGrad:
    n, t, width = x["b"].shape
    owner = torch.arange(n, device=x["b"].device).repeat_interleave(t)
    return IndexedGrad(x["ids"].flatten(), owner, x["b"].reshape(n * t, width), samples=n, table=5, most=t)


def tied_words(n: int, g: Generator) -> Tensors:
    return words(n, g) | {"a": torch.randn(n, 3, 4, generator=g), "o": torch.randn(n, 3, 5, generator=g)}


KINDS: list[KindCase] = [
    KindCase("dense", dense(7, 9), lambda x: DenseGrad(x["b"])),
    KindCase("dense_number", dense(1), lambda x: DenseGrad(x["b"])),
    KindCase("outer", factors(1, 12, 10), factored("outer")),
    KindCase("tokens_ghost", factors(5, 12, 10), factored("ghost")),
    KindCase("tokens_ghost_vectors", factors(5, 16, 8), factored("ghost")),
    KindCase("tokens_formed", factors(5, 12, 10), factored("formed")),
    KindCase("tokens_chunked", factors(5, 12, 10), factored("chunked")),
    KindCase("conv_ghost", maps(3, 4, 5), convolution("ghost")),
    KindCase("conv_pixels", maps(3, 4, 5), convolution("pixels")),
    KindCase("conv_strips", maps(12, 4, 5), convolution("pixels")),
    KindCase("conv_grouped", maps(3, 4, 5), convolution("grouped")),
    KindCase("conv_patches", maps(3, 4, 5), convolution("patches")),
    KindCase("conv_direct", maps(3, 4, 5), convolution("direct")),
    KindCase("conv_chunked", maps(3, 4, 5), convolution("chunked")),
    KindCase("indexed", words, table),
    KindCase(
        "tied",
        tied_words,
        lambda x: TiedGrad(table(x), FactoredGrad(x["a"], x["o"], algorithm="ghost")),
        scaled="o",
    ),
    KindCase(
        "restricted",
        factors(1, 12, 10),
        lambda x: restrict(FactoredGrad(x["a"], x["b"]), every_seventh(x["a"].device)),
    ),
]
