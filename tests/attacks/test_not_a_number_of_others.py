"""A record that is not a number silences others: 0·NaN = NaN wherever the backward of one loss meets other records.

On 0.2 one such record moved the clipped sum by 2.2 C (a module called record by record) and 2.7 C (a shared tensor
times the records). Each attack exchanges a good record for a bad one. The rows of all others must stay, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._mechanism.clipping import FlatClip
from quietgrad._noise.sources import SeededSource
from quietgrad._privatizer.pooling import Pooling, pool
from quietgrad._program.statistics import DiagonalMoments, Histograms, KroneckerMoments
from tests.attacks.harness import clipped_sum, releases
from tests.cases.layers import LAYERS, Apply, LayerCase, Losses, offset_bags, real, steps_first, tokens
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import losses_of, records, small_net

N, BAD = 4, 1
"""Also the width of many layers, so that axes can be mistaken."""
OTHERS = [i for i in range(N) if i != BAD]
VALUES = [math.nan, math.inf, -math.inf]


# ---- models whose records meet ------------------------------------------------------------------------------


def each(make: Callable[[], nn.Module], *shape: int) -> tuple[Callable[[], nn.Module], Any]:
    """A module that is called once a record, so that every call is a backward per sample."""
    return lambda: Apply(lambda m, x: torch.stack([m.layer(row) for row in x]), layer=make()), real(*shape)


def shared(meet: Callable[[Tensor, Tensor], Tensor]) -> tuple[Callable[[], nn.Module], Any]:
    """A table `[1, 3, 4]` that meets the records `[n, 3, 4]`."""
    return lambda: Apply(
        lambda m, x: meet(m.table(torch.arange(3)[None]), x), table=nn.Embedding(3, 4)
    ), real(3, 4)


def masked(m: Any, x: Tensor) -> Tensor:
    """A layer of some words of each record, in an order of no rule."""
    record, word = torch.tensor([[0, 0], [1, 2], [3, 1], [2, 0], [1, 0], [3, 2], [2, 1]]).T
    kept = (record < len(x)).nonzero()[:, 0]
    inside = m.second(m.first(x[record[kept], word[kept]]).tanh())
    return torch.zeros_like(x).index_put((record[kept], word[kept]), inside.to(x.dtype))


def dispatched(m: Any, x: Tensor) -> Tensor:
    """Records brought to other places by a matrix of zeros and ones, and a root of what may be zero."""
    order = torch.eye(len(x), dtype=x.dtype).roll(1, 0)
    return (order @ m.layer(x)).abs().sqrt()[order.argmax(0)]


MEETING = [
    LayerCase("each_linear", *each(lambda: nn.Linear(4, 3), 4)),
    LayerCase("each_layer_norm", *each(lambda: nn.LayerNorm(4), 3, 4)),
    LayerCase("each_instance_norm", *each(lambda: nn.InstanceNorm1d(3, affine=True), 3, 5)),
    LayerCase(
        "each_gru",
        lambda: Apply(lambda m, x: torch.stack([m.g(row)[0] for row in x]), g=nn.GRU(3, 4)),
        real(5, 3),
    ),
    LayerCase(
        "each_embedding",
        lambda: Apply(lambda m, x: torch.stack([m.e(row) for row in x]), e=nn.Embedding(7, 3)),
        tokens(7, 4),
    ),
    LayerCase(
        "samples_along_space",
        lambda: Apply(lambda m, x: m.c(x.T).T, c=nn.Conv1d(3, 2, 1)),
        real(3),
    ),
    LayerCase("shared_factor", *shared(lambda table, x: (table * x).tanh())),
    LayerCase("shared_factor_second", *shared(lambda table, x: x.mul(table.exp()).tanh())),
    LayerCase("shared_dividend", *shared(lambda table, x: table / x)),
    LayerCase("shared_divisor", *shared(lambda table, x: x / (table.square() + 1.0))),
    LayerCase("learned_queries", *shared(lambda table, x: (table @ x.transpose(1, 2)).softmax(2) @ x)),
    LayerCase("shared_in_einsum", *shared(lambda table, x: torch.einsum("td,nsd->nts", table[0], x))),
    LayerCase("shared_interpolation", *shared(lambda table, x: torch.lerp(table, table.cos(), x))),
    LayerCase(
        "masked_words", lambda: Apply(masked, first=nn.Linear(4, 4), second=nn.Linear(4, 4)), real(3, 4)
    ),
    LayerCase("dispatched", lambda: Apply(dispatched, layer=nn.Linear(4, 3, bias=False)), real(4)),
    LayerCase(
        "checkpointed",
        lambda: Apply(
            lambda m, x: torch.stack(
                [checkpoint(lambda r: m.b(m.a(r).tanh()), row, use_reentrant=False) for row in x]
            ),
            a=nn.Linear(4, 4),
            b=nn.LayerNorm(4),
        ),
        real(3, 4),
    ),
]
ALL = [*LAYERS, *MEETING]
ATTACKS = [
    *((case, value) for case in LAYERS for value in (math.nan, math.inf)),
    *((case, value) for case in MEETING for value in VALUES),
]


def attacks(pairs: list[tuple[LayerCase, float]]) -> list[Any]:
    """All of these; a layer by itself meets infinity in slow tests, since it is zeroed where NaN is."""
    plain = {case.name for case in LAYERS}
    return [
        pytest.param(
            case,
            value,
            id=f"{case}-{value}",
            marks=pytest.mark.slow if case.name in plain and value == math.inf else (),
        )
        for case, value in pairs
    ]


# ---- bad records --------------------------------------------------------------------------------------------


def bad_factor(case: LayerCase, value: float) -> LayerCase:
    """Multiply the loss of one record."""
    factors = torch.ones(N, dtype=torch.float64)
    factors[BAD] = value
    return replace(case, losses=lambda model, inputs: case.losses(model, inputs) * factors)


def bad_activation(case: LayerCase, value: float) -> LayerCase:
    """Multiply one number of what the model returns for one record."""

    def spoil(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        factors = torch.ones(out.shape, dtype=out.dtype)
        factors[BAD].view(-1)[0] = value
        return out * factors

    def losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return case.losses(lambda *x: spoil(model, x, model(*x)), inputs)  # type: ignore[arg-type]

    return replace(case, losses=losses)


def bad_input(case: LayerCase, value: float) -> tuple[Tensor, ...]:
    """Overwrite one record."""
    inputs = tuple(x.clone() for x in case.batch(N))
    for x in inputs:
        (x[:, BAD] if case.inputs is steps_first else x[BAD]).fill_(value)
    return inputs


def takes_bad_inputs(case: LayerCase) -> bool:
    """Whether a NaN can be put into a record, and stays in its loss: zeros times NaN in a forward are the model's."""
    return case.batch(1)[0].is_floating_point() and case.name != "dispatched"


def gradients(case: LayerCase, inputs: tuple[Tensor, ...], losses: Losses | None = None) -> BlockwiseGrads:
    model = case.model()
    recorder = Recorder(model, deterministic=True)
    recorder.attach()
    try:
        return recorder.collect((losses or case.losses)(model, inputs))
    finally:
        recorder.detach()


def check_others(bad: BlockwiseGrads, good: BlockwiseGrads) -> None:
    """The rows of all others are finite, and the same bits; a recurrent layer's are multiplied in another order."""
    tolerance = 1e-14 if any(name.startswith("g.") for name in good.blocks) else 0.0
    for name, block in good.blocks.items():
        rows = block.dense()[OTHERS]
        assert rows.isfinite().all()
        torch.testing.assert_close(bad.blocks[name].dense()[OTHERS], rows, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(bad.squared_norms()[OTHERS], good.squared_norms()[OTHERS], rtol=1e-12, atol=0)
    total = FlatClip(1.0)(bad, 0).blocks.values()
    rest = FlatClip(1.0)(good, 0).blocks.values()
    moved = torch.cat([(a.double() - b.double()).flatten() for a, b in zip(total, rest, strict=True)])
    assert float(moved.norm()) <= 2.0  # of one row for another


# ---- attacks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "value"), attacks(ATTACKS))
def test_a_bad_loss_leaves_the_rows_of_others(case: LayerCase, value: float) -> None:
    bad = gradients(bad_factor(case, value), case.batch(N))
    check_others(bad, gradients(bad_factor(case, 1.0), case.batch(N)))
    assert not bad.squared_norms()[BAD].isfinite()


@pytest.mark.parametrize(
    ("case", "value"), attacks([pair for pair in ATTACKS if pair[0].inputs is not offset_bags])
)
def test_a_bad_activation_leaves_the_rows_of_others(case: LayerCase, value: float) -> None:
    bad = gradients(bad_activation(case, value), case.batch(N))
    check_others(bad, gradients(bad_activation(case, 1.0), case.batch(N)))


@pytest.mark.parametrize(
    ("case", "value"),
    attacks([pair for pair in [*ATTACKS, *((case, 3e300) for case in ALL)] if takes_bad_inputs(pair[0])]),
)
def test_a_bad_input_leaves_the_rows_of_others(case: LayerCase, value: float) -> None:
    check_others(gradients(case, bad_input(case, value)), gradients(case, case.batch(N)))


def test_an_infinite_derivative_stays_with_its_record() -> None:
    """All losses are finite; the gradient of one is not, and meets those of others in a product with zeros."""
    case = next(case for case in MEETING if case.name == "dispatched")
    check_others(gradients(case, bad_input(case, 0.0)), gradients(case, case.batch(N)))


@pytest.mark.parametrize("where", ["loss", "input"])
@pytest.mark.parametrize("case", MEETING, ids=str)
def test_views_pooled_users_and_autocast_leave_the_rows_of_others(case: LayerCase, where: str) -> None:
    floating, by_input = case.batch(1)[0].is_floating_point(), where == "input" and takes_bad_inputs(case)
    inputs = bad_input(case, math.nan) if by_input else case.batch(N)
    spoilt = case if by_input else bad_factor(case, math.nan)

    def views(chosen: LayerCase) -> Losses:
        return lambda model, x: torch.stack([chosen.losses(model, x), case.losses(model, case.batch(N))], 1)

    def half(chosen: LayerCase) -> Losses:
        def losses(model: nn.Module, x: tuple[Tensor, ...]) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return chosen.losses(model.float(), tuple(t.float() if floating else t for t in x)).float()

        return losses

    check_others(gradients(case, inputs, views(spoilt)), gradients(case, case.batch(N), views(case)))
    if case.name != "each_gru":  # a recurrent layer under autocast is replayed, which takes batches alone
        check_others(gradients(case, inputs, half(spoilt)), gradients(case, case.batch(N), half(case)))
    users = Pooling(np.array([2, 1, 1]), np.array([0.5, 1.0, 1.0]))
    bad, good = pool(gradients(spoilt, inputs), users), pool(gradients(case, case.batch(N)), users)
    for name, block in good.blocks.items():
        torch.testing.assert_close(bad.blocks[name].dense()[1:], block.dense()[1:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("where", ["loss", "input"])
@pytest.mark.parametrize(
    "name", ["conv2d_unbatched", "positions_multiplied", "shared_factor", "learned_queries"]
)
def test_a_release_is_that_without_the_bad_record(name: str, where: str) -> None:
    """The finding of 0.2: 2.2 C and 2.7 C for a sensitivity of C."""
    case = next(case for case in ALL if case.name == name)
    (x,) = case.batch(N)
    factors = torch.ones(N, dtype=torch.float64)
    if where == "loss" or not x.is_floating_point():
        factors[BAD] = math.nan
    else:
        x[BAD] = math.nan
    data = TensorDataset(x, factors)

    def total(rows: list[int]) -> Tensor:
        return clipped_sum(case.model, data, rows, lambda model, x, f: case.losses(model, (x,)) * f)

    torch.testing.assert_close(total(list(range(N))), total(OTHERS), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_release_of_any_method_is_that_without_the_bad_record(case: MethodCase) -> None:
    """What is encoded, projected or masked by a record stays in its row."""
    x, y = records(torch.float64, 16).tensors
    x[BAD] = math.nan

    def released(rows: list[int]) -> Tensor:
        mechanism = case.build(1.0).with_noise(1e-9)
        options: dict[str, Any] = {"noise_source": SeededSource(1), "public_seed": 7, "deterministic": True}
        model = small_net(torch.float64)
        (last,) = releases(model, mechanism, TensorDataset(x, y), [rows], losses_of, **options)
        return last

    everybody = list(range(16))
    rest = [i for i in everybody if i != BAD]
    torch.testing.assert_close(released(everybody), released(rest), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "statistic",
    [
        qg.Mean(),
        qg.SecondMoments(),
        DiagonalMoments(),
        KroneckerMoments(),
        Histograms((-1.0, 0.0, 1.0, 2.0), 4),
    ],
    ids=lambda statistic: type(statistic).__name__,
)
def test_a_statistic_moves_by_at_most_its_bound(statistic: qg.Statistic, value: float) -> None:
    shape = (N, 2, 4) if isinstance(statistic, KroneckerMoments) else (N, 4)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) / 4
    x[BAD] = value

    def total(rows: list[int]) -> Tensor:
        summed = FlatClip(statistic.bound)(statistic.rows(x[rows]), 0)
        return torch.cat([block.double().flatten() for block in summed.blocks.values()])

    moved = total(list(range(N))) - total(OTHERS)
    assert float(moved.norm()) <= statistic.bound
