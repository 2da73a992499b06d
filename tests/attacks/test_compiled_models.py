"""Compiled models hide their graph: mixing, reordering and numbers that are none must not get past the clip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.stages import BlockwiseGrads


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Middle(nn.Module):
    """Two layers with an operation between them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.kind == "mixing":
            hidden = hidden - hidden.mean(0)
        if self.kind == "reordered":
            # By content: another order in every batch, undone before the losses.
            order = hidden[:, 0].argsort()
            out: Tensor = self.last(hidden[order])
            return out[order.argsort()]
        result: Tensor = self.last(hidden)
        return result


def gradients(model: nn.Module, x: Tensor, *, compiled: bool) -> BlockwiseGrads:
    recorder = Recorder(
        model, deterministic=True, compile_options={"backend": "aot_eager"} if compiled else None
    )
    recorder.attach()
    try:
        return recorder.collect(F.cross_entropy(model(x), torch.arange(len(x)) % 3, reduction="none"))
    finally:
        recorder.detach()


def norms(grads: BlockwiseGrads) -> Tensor:
    return torch.stack([block.squared_norms() for block in grads.blocks.values()]).sum(0)


def test_a_model_that_mixes_records_inside_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to several samples"):
        gradients(Middle("mixing"), torch.randn(6, 4), compiled=True)


def test_records_that_are_reordered_inside_keep_their_own_norms() -> None:
    model, x = Middle("reordered"), torch.randn(7, 4)
    torch.testing.assert_close(
        norms(gradients(model, x, compiled=True)), norms(gradients(model, x, compiled=False))
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_record_that_is_no_number_changes_no_other_row(value: float) -> None:
    model, x = Middle("plain"), torch.randn(6, 4)
    expected = norms(gradients(model, x, compiled=True))
    x[2] = value
    found = norms(gradients(model, x, compiled=True))
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], expected[others])
