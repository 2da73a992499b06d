"""Releases of one micro-batch share what an inner representation made of it; micro-batches never do."""

from __future__ import annotations

import weakref

import torch

from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec
from quietgrad._representations.compose import ComposedCodec


class Doubling(Codec):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.space, self.calls = Space.of_shapes({"w": torch.Size((3,))}), 0

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        self.calls += 1
        return micro_batch(2 * grads.dense()["w"])

    def decode(self, released: Released) -> Blocks:
        return released.blocks


class Same(Doubling):
    """Encodes to the very gradients it is given."""

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        return grads


def micro_batch(rows: torch.Tensor) -> BlockwiseGrads:
    return BlockwiseGrads({"w": DenseGrad(rows)}, len(rows))


def test_two_releases_of_a_micro_batch_encode_it_once() -> None:
    inner = Doubling()
    first, second = ComposedCodec(Doubling(), inner), ComposedCodec(Doubling(), inner)
    grads = micro_batch(torch.ones(2, 3))
    for codec in (first, second):
        assert torch.equal(codec.encode(grads).dense()["w"], torch.full((2, 3), 4.0))
    assert inner.calls == 1


def test_another_micro_batch_is_encoded_anew_while_the_first_still_lives() -> None:
    codec, ones, fives = ComposedCodec(Doubling(), Doubling()), torch.ones(2, 3), torch.full((1, 3), 5.0)
    grads, others = micro_batch(ones), micro_batch(fives)
    for rows, batch in ((ones, grads), (fives, others), (ones, grads)):
        assert torch.equal(codec.encode(batch).dense()["w"], 4 * rows)


def test_an_encoding_is_forgotten_with_its_gradients() -> None:
    codec, identity = Doubling(), Same()
    for inner in (codec, identity):
        grads = micro_batch(torch.ones(2, 3))
        inner.encode_once(grads)
        alive = weakref.ref(grads)
        del grads
        assert alive() is None
        assert len(inner._encoded._made) == 0
