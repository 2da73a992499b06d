"""Sketches of passes: each block has a direction of its own, which is the same in every pass."""

from __future__ import annotations

import torch

import quietgrad as qg
from quietgrad._independence.directions import along
from quietgrad._independence.sketches import Directions, Sketch


def test_blocks_have_directions_of_their_own_and_passes_the_same() -> None:
    block = qg.FactoredGrad(torch.randn(4, 1, 5), torch.randn(4, 1, 3))
    directions = Directions(1)
    first, again, other = Sketch(directions), Sketch(Directions(1)), Sketch(directions)
    first.add("w", block)
    again.add("w", block)
    other.add("v", block)
    assert torch.equal(first.products(4), again.products(4))
    assert not torch.allclose(first.products(4), other.products(4))


def test_a_sketch_adds_up_all_blocks() -> None:
    blocks = {name: qg.FactoredGrad(torch.randn(4, 1, 5), torch.randn(4, 1, 3)) for name in ("w", "v")}
    directions = Directions(1)
    sketch = Sketch(directions)
    for name, block in blocks.items():
        sketch.add(name, block)
    expected = along(blocks["w"], directions.of("w", blocks["w"])) + along(
        blocks["v"], directions.of("v", blocks["v"])
    )
    assert torch.equal(sketch.products(4), expected)
    assert torch.equal(Sketch(directions).products(3), torch.zeros(3, dtype=torch.float64))
