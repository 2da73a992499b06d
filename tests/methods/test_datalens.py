"""DataLens: each sample's own top-k, with noise everywhere."""

from __future__ import annotations

import math

import pytest
import torch

import quietgrad as qg
from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._representations.masks.top_k import TopKCodec
from tests.methods.test_freeze import DIVISOR, released_once, sample_gradients


def reference(keep: float, sign: bool, bound: float) -> torch.Tensor:
    rows = []
    for row in sample_gradients():
        kept = row.abs().argsort(descending=True)[: round(keep * len(row))]
        sparse = torch.zeros_like(row)
        sparse[kept] = row[kept].sign() if sign else row[kept]
        rows.append(sparse * min(1.0, (1 - MARGIN) * bound / float(sparse.norm())))
    return torch.stack(rows).sum(0) / DIVISOR


@pytest.mark.parametrize("sign", [True, False])
@pytest.mark.parametrize(("keep", "bound"), [(0.1, 0.5), (0.8, 100.0), (1.0, 1.0)])
def test_every_sample_keeps_its_own_largest_coordinates(keep: float, bound: float, sign: bool) -> None:
    got = released_once(qg.methods.datalens(keep=keep, sign=sign, clip=bound).with_noise(0.0))
    assert torch.allclose(got, reference(keep, sign, bound), atol=1e-12)


def test_noise_goes_to_every_coordinate() -> None:
    got = released_once(qg.methods.datalens(keep=0.01, clip=1.0).with_noise(3.0))
    assert bool((got != 0).all())
    assert float(got.std()) == pytest.approx(0.3, rel=5 / math.sqrt(2 * len(got)))


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", [0, 4])
def test_the_sign_of_an_infinity_does_not_pass_for_a_gradient(poison: float, where: int) -> None:
    rows = torch.tensor([[1.0, -2.0, 0.5, 3.0, 0.1]]).repeat(2, 1)
    rows[1, where] = poison
    codec = TopKCodec(Space.of_shapes({"w": torch.Size((5,))}), 2, sign=True)
    encoded = codec.encode(BlockwiseGrads({"w": DenseGrad(rows)}, 2))
    total = qg.FlatClip(10.0)(encoded, 0).blocks["w"]
    assert total.tolist() == [0.0, -1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.2])
def test_ratios_outside_their_range_are_refused(keep: float) -> None:
    with pytest.raises(ValueError, match="keep in \\(0, 1\\]"):
        qg.methods.datalens(keep=keep)
