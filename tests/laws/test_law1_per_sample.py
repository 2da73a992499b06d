"""Law 1: squared norms, weighted sums and dense gradients equal the loop over samples, for every layer and way."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._gradients.tuning import TunableGrads
from quietgrad._representations.subspace.projections import project, weighted_sums
from tests.cases.layers import LAYERS, LayerCase
from tests.cases.memory import INPUTS, OUTPUTS, Viewed
from tests.reference import looped

Inputs = tuple[Tensor, ...]


def captured(
    case: LayerCase,
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    calls: int = 1,
    deterministic: bool = True,
    keep_factors: bool = True,
) -> BlockwiseGrads:
    """The gradients of the last of several equal batches: the first call probes, later ones remember."""
    recorder = Recorder(model, deterministic=deterministic)
    recorder.attach()
    try:
        for _ in range(calls):
            grads = recorder.collect(case.losses(model, inputs), keep_factors=keep_factors)
    finally:
        recorder.detach()
    return grads


def check(grads: BlockwiseGrads, expected: dict[str, Tensor], n: int) -> None:
    weights = torch.linspace(0.0, 1.0, n, dtype=torch.float64)
    squared, total = grads.squared_norms(), grads.weighted_sum(weights)
    assert set(total) == set(expected)
    truth = torch.zeros(n, dtype=torch.float64)
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
        torch.testing.assert_close(total[name], torch.tensordot(weights, rows, 1))
        truth += rows.flatten(1).square().sum(1)
    torch.testing.assert_close(squared, truth)


@pytest.mark.parametrize("calls", [1, 2], ids=["first", "later"])
@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop(case: LayerCase, n: int, calls: int) -> None:
    model, inputs = case.model(), case.batch(n)
    check(
        captured(case, model, inputs, calls=calls, deterministic=n != 5),
        looped(model, inputs, case.losses, n),
        n,
    )


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_without_factors_equal_the_loop(case: LayerCase, n: int) -> None:
    model, inputs = case.model(), case.batch(n)
    grads = captured(case, model, inputs, deterministic=False, keep_factors=False)
    check(grads, looped(model, inputs, case.losses, n), n)


@pytest.mark.parametrize("kind", list(OUTPUTS))
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop_however_output_gradients_lie_in_memory(
    case: LayerCase, n: int, kind: str
) -> None:
    model, inputs = case.model(), case.batch(n)
    expected = looped(Viewed(model, kind, compact=True), inputs, case.losses, n)
    check(captured(case, Viewed(model, kind), inputs), expected, n)


@pytest.mark.parametrize("kind", list(INPUTS))
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop_however_inputs_lie_in_memory(case: LayerCase, n: int, kind: str) -> None:
    if (n, kind, case.name) == (1, "channels_last", "group_norm"):
        pytest.skip("torch's own backward of a GroupNorm crashes on one image whose channels come last")
    model, inputs = case.model(), tuple(INPUTS[kind](x) for x in case.batch(n))
    expected = looped(model, tuple(x.contiguous() for x in inputs), case.losses, n)
    check(captured(case, model, inputs), expected, n)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_an_empty_batch_has_no_rows(case: LayerCase) -> None:
    model = case.model()
    recorder = Recorder(model)
    recorder.attach()
    grads = recorder.collect(torch.zeros(0, dtype=torch.float64, requires_grad=True))
    recorder.detach()
    check(grads, looped(model, (), case.losses, 0), 0)


@functools.cache
def forced() -> list[tuple[LayerCase, str]]:
    """Every layer with every way that one of its blocks can take."""
    found = []
    for case in LAYERS:
        blocks = captured(case, case.model(), case.batch(3)).blocks.values()
        algorithms = {
            algorithm
            for block in blocks
            if isinstance(block, TunableGrads)
            for algorithm in block.memory_cost()
        }
        found += [(case, algorithm) for algorithm in sorted(algorithms)]
    return found


@pytest.mark.parametrize(("case", "algorithm"), forced(), ids=lambda value: str(value))
def test_every_way_equals_the_loop(case: LayerCase, algorithm: str) -> None:
    model, inputs = case.model(), case.batch(3)
    grads = captured(case, model, inputs)
    blocks = {
        name: block.with_algorithm(algorithm, chunk=2)
        if isinstance(block, TunableGrads) and algorithm in block.memory_cost()
        else block
        for name, block in grads.blocks.items()
    }
    assert any(isinstance(block, TunableGrads) and block.algorithm == algorithm for block in blocks.values())
    check(BlockwiseGrads(blocks, 3), looped(model, inputs, case.losses, 3), 3)


@pytest.mark.parametrize(("case", "algorithm"), forced(), ids=lambda value: str(value))
def test_every_way_projects_and_sums_alike(case: LayerCase, algorithm: str) -> None:
    model, inputs = case.model(), case.batch(3)
    expected = looped(model, inputs, case.losses, 3)
    generator = torch.Generator().manual_seed(0)
    for name, block in captured(case, model, inputs).blocks.items():
        if isinstance(block, TunableGrads) and algorithm in block.memory_cost():
            block = block.with_algorithm(algorithm, chunk=2)
        directions = torch.randn(2, *block.shape, generator=generator, dtype=torch.float64)
        weights = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        rows = expected[name].flatten(1)
        torch.testing.assert_close(project(block, directions), rows @ directions.flatten(1).T)
        torch.testing.assert_close(weighted_sums(block, weights).flatten(1), weights @ rows)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_a_dropped_row_is_exactly_zero_even_if_it_is_not_a_number(case: LayerCase) -> None:
    model, inputs = case.model(), case.batch(3)
    if not all(x.is_floating_point() and len(x) == 3 for x in inputs):
        pytest.skip("no floating-point rows to poison")
    if case.name == "conv2d_unbatched":
        pytest.skip("one call per sample: the NaN reaches every backward, and every sample is dropped")
    inputs[0][1] = float("nan")
    grads = captured(case, model, inputs)
    weights = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    norms, total = grads.squared_norms(), grads.weighted_sum(weights)
    assert not norms[1].isfinite()
    assert norms[[0, 2]].isfinite().all()
    assert all(block.isfinite().all() for block in total.values())
