"""Law 1: squared norms, weighted sums and dense gradients equal the loop over samples.

For every layer and every algorithm. The loop is the slow part: each is computed once per process and shared by all
tests of a layer that have the same function and the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.convolution import ALGORITHMS as OF_CONVOLUTIONS
from quietgrad._gradients.factored import ALGORITHMS as OF_FACTORS
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._gradients.tuning import TunableGrads
from quietgrad._representations.subspace.projections import project, weighted_sums
from tests.cases.layers import LAYERS, LayerCase
from tests.cases.memory import INPUTS, OUTPUTS, SAME_FUNCTION, SAME_NUMBERS, Viewed
from tests.reference import looped

Inputs = tuple[Tensor, ...]
N = 4
"""Samples of the tests that run at one batch size: also the width of many layers, so that axes can be mistaken."""


@functools.cache
def reference(case: LayerCase, n: int = N) -> dict[str, Tensor]:
    """Loop over the samples of `case.batch(n)`, once per process."""
    return looped(case.model(), case.batch(n), case.losses, n)


def captured(
    case: LayerCase,
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    deterministic: bool = True,
    keep_factors: bool = True,
) -> BlockwiseGrads:
    """Capture the gradients of one batch."""
    (grads,) = batches(case, model, inputs, 1, deterministic=deterministic, keep_factors=keep_factors)
    return grads


def batches(
    case: LayerCase,
    model: torch.nn.Module,
    inputs: Inputs,
    count: int,
    *,
    deterministic: bool = True,
    keep_factors: bool = True,
) -> Iterator[BlockwiseGrads]:
    """Capture equal batches one after another: the first one is analysed, later ones use what was found."""
    recorder = Recorder(model, deterministic=deterministic)
    recorder.attach()
    try:
        for _ in range(count):
            yield recorder.collect(case.losses(model, inputs), keep_factors=keep_factors)
    finally:
        recorder.detach()


def by_every_algorithm(grads: BlockwiseGrads, chunk: int) -> dict[str, BlockwiseGrads]:
    """The same gradients by every algorithm that one of the blocks offers; blocks without it stay as they are."""
    blocks = grads.blocks
    offers = {name: block.memory_cost() for name, block in blocks.items() if isinstance(block, TunableGrads)}
    return {
        algorithm: BlockwiseGrads(
            {
                name: block.with_algorithm(algorithm, chunk=chunk)
                if isinstance(block, TunableGrads) and algorithm in offers[name]
                else block
                for name, block in blocks.items()
            },
            grads.samples,
        )
        for algorithm in sorted({algorithm for offer in offers.values() for algorithm in offer})
    }


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


@pytest.mark.parametrize("n", [1, N])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop(case: LayerCase, n: int) -> None:
    for grads in batches(case, case.model(), case.batch(n), 2):
        check(grads, reference(case, n), n)


@pytest.mark.parametrize("keep_factors", [True, False], ids=["kept", "freed"])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_by_the_measured_algorithm_equal_the_loop(case: LayerCase, keep_factors: bool) -> None:
    model, inputs = case.model(), case.batch(N)
    grads = captured(case, model, inputs, deterministic=False, keep_factors=keep_factors)
    check(grads, reference(case), N)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_of_one_sample_whose_factors_are_freed_equal_the_loop(case: LayerCase) -> None:
    check(captured(case, case.model(), case.batch(1), keep_factors=False), reference(case, 1), 1)


@pytest.mark.parametrize("kind", list(OUTPUTS))
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop_however_output_gradients_lie_in_memory(case: LayerCase, kind: str) -> None:
    model, inputs = case.model(), case.batch(N)
    if kind in SAME_FUNCTION:
        expected = {f"model.{name}": rows for name, rows in reference(case).items()}
    else:
        expected = looped(Viewed(model, kind, compact=True), inputs, case.losses, N)
    check(captured(case, Viewed(model, kind), inputs), expected, N)


@pytest.mark.parametrize("kind", list(INPUTS))
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_equal_the_loop_however_inputs_lie_in_memory(case: LayerCase, kind: str) -> None:
    model, inputs = case.model(), tuple(INPUTS[kind](x) for x in case.batch(N))
    if kind in SAME_NUMBERS:
        expected = reference(case)
    else:
        expected = looped(model, tuple(x.contiguous() for x in inputs), case.losses, N)
    check(captured(case, model, inputs), expected, N)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_an_empty_batch_has_no_rows(case: LayerCase) -> None:
    recorder = Recorder(case.model())
    recorder.attach()
    grads = recorder.collect(torch.zeros(0, dtype=torch.float64, requires_grad=True))
    recorder.detach()
    check(grads, reference(case, 0), 0)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_every_algorithm_equals_the_loop(case: LayerCase) -> None:
    expected = reference(case)
    for grads in by_every_algorithm(captured(case, case.model(), case.batch(N)), chunk=3).values():
        check(grads, expected, N)
        generator = torch.Generator().manual_seed(0)
        for name, block in grads.blocks.items():
            directions = torch.randn(2, *block.shape, generator=generator, dtype=torch.float64)
            weights = torch.randn(2, N, generator=generator, dtype=torch.float64)
            rows = expected[name].flatten(1)
            torch.testing.assert_close(project(block, directions), rows @ directions.flatten(1).T)
            torch.testing.assert_close(weighted_sums(block, weights).flatten(1), weights @ rows)


def test_every_algorithm_is_offered_by_a_layer_above() -> None:
    layers = ("linear", "linear_3d", "linear_wide", "conv2d", "conv2d_wide", "conv2d_groups")
    cases = [case for case in LAYERS if case.name in layers]
    offered = {
        algorithm
        for case in cases
        for algorithm in by_every_algorithm(captured(case, case.model(), case.batch(N)), chunk=3)
    }
    # The C kernel of "direct" serves float32 alone: tests/kernels/test_conv_rows.py.
    assert offered | {"direct"} == {*OF_FACTORS, *OF_CONVOLUTIONS}


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_a_dropped_row_is_exactly_zero_even_if_it_is_not_a_number(case: LayerCase) -> None:
    """The factor of one loss is not a number, so neither are its gradients, whatever the layer is given."""
    model, inputs = case.model(), case.batch(N)
    factors = torch.tensor([1.0, float("nan"), 1.0, 1.0], dtype=torch.float64)
    poisoned = replace(case, losses=lambda model, inputs: case.losses(model, inputs) * factors)
    grads = captured(poisoned, model, inputs)
    weights = torch.tensor([1.0, 0.0, 0.5, 0.25], dtype=torch.float64)
    norms, total = grads.squared_norms(), grads.weighted_sum(weights)
    assert not norms[1].isfinite()
    assert norms[[0, 2, 3]].isfinite().all()
    assert all(block.isfinite().all() for block in total.values())
