"""Every supported layer compiled: the factors are those of the uncompiled model, bit for bit, or it says no by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from quietgrad._capture.compiled import COMPUTE
from tests.capture.test_compiled import Factors
from tests.cases.layers import LAYERS, LayerCase

SUPPORTED = [
    case
    for case in LAYERS
    if all(
        type(m) in COMPUTE for m in case.model().modules() if any(True for _ in m.parameters(recurse=False))
    )
]
REFUSED = {
    "linear_pruned": "cannot be compiled",
    "linear_twice": "called 2 times",
    "conv2d_twice": "called 2 times",
    "conv2d_two_sizes": "called 2 times",
    "conv2d_unbatched": "called 5 times",
    "embedding_twice": "called 2 times",
    "positions_batched": "several samples",
    "positions_flat": "several samples",
    "positions_multiplied": "several samples",
    "distances": "several samples",
}
ROUNDED = {"linear_tokens_first"}
"""Its output has other strides when it is compiled, and the loss, which is not compiled, then rounds otherwise."""

Found = dict[str, tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def model_of(case: LayerCase) -> nn.Module:
    model = case.model(torch.float32)
    # A model that is one layer has no inside to compile.
    return nn.Sequential(model) if any(True for _ in model.parameters(recurse=False)) else model


def factors_of(case: LayerCase, model: nn.Module, options: dict[str, str] | None) -> Found:
    factors = Factors(model, options)
    try:
        factors.recorder.collect(case.losses(model, case.batch(5, torch.float32)))
    finally:
        factors.recorder.detach()
    return factors.found


@pytest.mark.slow
@pytest.mark.parametrize("case", SUPPORTED, ids=str)
def test_a_compiled_layer_has_the_factors_of_the_layer(case: LayerCase) -> None:
    model, compiled = model_of(case), {"backend": "aot_eager"}
    if case.name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[case.name]):
            factors_of(case, model, compiled)
        return
    expected, found = factors_of(case, model, None), factors_of(case, model, compiled)
    assert expected.keys() == found.keys()
    for name, theirs in expected.items():
        for mine, other in zip(found[name], theirs, strict=True):
            if case.name in ROUNDED:
                torch.testing.assert_close(mine, other)
            else:
                assert torch.equal(mine, other), name
