"""Records whose roundings all go the same way: an adversary who chooses the others makes one record count for more.

Bounds that take roundings for random held for every drawn batch and broke for these: 512 rows of a product were added
up in float32, where one record moved the sum by 1.0028 of the bound, and a Gram norm fell so far below the truth that a
clipped record was 1.048 long. Both bounds count the worst case now.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._kernels.rounding import POSITIONS, RUN, SPENT, UNIT, longest, runs
from quietgrad._mechanism.clipping import MARGIN, clip_weights


def conspiracy(n: int, power: int) -> Tensor:
    """Gradients along one coordinate. The first is the victim's; some add up to just below a power of two, over which
    only the victim's lifts them; the rest are half a unit of rounding long there: counted once, or twice."""
    gradients = torch.full((n,), power * 2.0**-24 * 1.01)
    full = math.ceil(power / 0.99)
    gradients[0] = 1.0
    gradients[1 : 1 + full] = (power - 0.5) / full
    return gradients


def released(gradients: Tensor, *, batch: int) -> float:
    """The sum that a non-private run shows in p.grad: what the noise would be added to."""
    model = nn.Linear(1, 1, bias=False)
    data = torch.utils.data.TensorDataset(gradients[:, None])
    batches = qg.PoissonBatches(data, rate=1.0, steps=1)
    with qg.Privatizer(model, replace(qg.methods.dp_sgd(clip=1.0), noise_multiplier=0.0), batches) as private:
        for drawn in batches:
            for (x,) in drawn.split(batch):
                private.backward(model(torch.ones_like(x))[:, 0] * x[:, 0])
            private.release()
    gradient = model.weight.grad
    assert gradient is not None
    return float(gradient) * len(gradients)


@pytest.mark.parametrize("power", [32, 64, 128, 256])
def test_rows_that_conspire_move_a_sum_no_further_than_the_bound(power: int) -> None:
    present = conspiracy(512, power)
    absent = present.clone()
    absent[0] = 0.0
    assert released(present, batch=512) - released(absent, batch=512) <= 1.0


@pytest.mark.parametrize("power", [64, 128, 256])
@pytest.mark.parametrize("matrix", [(1, 1), (1, 5), (10, 12), (64, 64)], ids=str)
def test_so_do_they_in_matrices_of_every_shape(matrix: tuple[int, int], power: int) -> None:
    n, (outputs, inputs) = 512, matrix
    a, b = torch.zeros(n, 1, inputs), torch.zeros(n, 1, outputs)
    a[:, 0, 0], b[:, 0, 0] = 1.0, conspiracy(n, power)
    clip = qg.FlatClip(1.0)
    whole = clip(BlockwiseGrads({"w": FactoredGrad(a, b)}, n), 0).blocks["w"].double()
    b[0] = 0.0
    without = clip(BlockwiseGrads({"w": FactoredGrad(a, b)}, n), 0).blocks["w"].double()
    assert float((whole - without).norm()) <= 1.0


def nearly_parallel(features: int, difference: float) -> tuple[Tensor, Tensor]:
    """Two positions that nearly cancel. After a large first feature their products lie at half a unit of rounding:
    those of the two with each other are rounded up, so the Gram norm sees them closer to parallel than they are."""
    half = 2.0**-24
    long, short = math.sqrt(half * 1.2), math.sqrt(half * 1.0001 / 1.2)
    a, b = torch.zeros(1, 2, features), torch.zeros(1, 2, 8)
    a[0, :, 0] = 1.0
    a[0, 0, 1:-1:2], a[0, 0, 2:-1:2] = long, short
    a[0, 1, 1:-1:2], a[0, 1, 2:-1:2] = short, long
    a[0, 0, -1], a[0, 1, -1] = difference / 2, -difference / 2
    b[0, 0, 0], b[0, 1, 0] = 1.0, -1.0
    return a, b


@pytest.mark.parametrize("padding", [0, 2, 6])
@pytest.mark.parametrize("features", [256, 1024, 4096, 16_384])
def test_a_record_whose_gram_norm_is_rounded_down_is_clipped_all_the_same(
    features: int, padding: int
) -> None:
    for much in (2, 5, 10, 20, 50, 100, 200, 300, 500, 700, 1500, 10_000):
        a, b = nearly_parallel(features, math.sqrt(much * (4 + math.sqrt(features)) * 2.0**-23))
        a, b = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (a, b))
        grads = FactoredGrad(a, b, algorithm="ghost")
        weight = clip_weights(BlockwiseGrads({"w": grads}, 1).squared_norms(), 1e-3)
        true = float((b[0].double().T @ a[0].double()).norm())
        assert float(weight[0]) * true <= (1 - MARGIN) * 1e-3 * (1 + 1e-6), (features, padding, much)


def test_the_margin_covers_the_worst_that_rounding_can_do() -> None:
    """The figures of `gradients.sums`, worked out again term by term."""
    assert 2 * UNIT * sum(range(1, RUN + 1)) < SPENT < MARGIN
    for positions in (1, 2, 3, 7, 64, 255, 256):
        together = POSITIONS // positions
        terms = together * positions
        # Every sample's terms are one, and it is added before those of all samples that follow.
        in_partial_sums = sum(terms - sample for sample in range(together))
        worlds = 1 if together == 1 else 2
        assert worlds * UNIT * in_partial_sums * longest(positions) == pytest.approx(SPENT)
    assert longest(1) >= 1.0
    assert UNIT * POSITIONS * longest(10_000) == pytest.approx(SPENT)


@pytest.mark.parametrize("positions", [1, 3, 100, 255, 256, 257, 300, 1000])
def test_runs_hold_whole_samples_or_parts_of_one(positions: int) -> None:
    places = list(runs(7, positions, torch.float32))
    assert [i for part in places for i in range(part.start, part.stop)] == list(range(7 * positions))
    for part in places:
        assert part.stop - part.start <= POSITIONS
        cut = part.start % positions != 0 or part.stop % positions != 0
        assert not cut or part.start // positions == (part.stop - 1) // positions
