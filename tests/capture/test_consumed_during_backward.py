"""Gradients are consumed during the backward, and nothing is kept that norms and sums do without."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietgrad._capture.adapters.conv import ConvAdapter
from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.kept_kernels import KeptKernels
from tests.reference import looped

N = 5


def images() -> Tensor:
    return torch.randn(N, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    out: Tensor = model(*inputs)
    return out.flatten(1).square().sum(1)


class Residual(nn.Module):
    """Two paths meet, so that some gradients are sums."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.last = nn.GroupNorm(2, 4), nn.Linear(4 * 144, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.inner(torch.relu(self.norm(x)))
        out: Tensor = self.last(torch.tanh(x).flatten(1))
        return out


def model() -> nn.Module:
    torch.manual_seed(0)
    return Residual().double()


def collected(recorder: Recorder, net: nn.Module, *, keep_factors: bool) -> Any:
    recorder.attach()
    try:
        return recorder.collect(losses(net, (images(),)), keep_factors=keep_factors)
    finally:
        recorder.detach()


@pytest.mark.parametrize("keep_factors", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_equal_the_loop(keep_factors: bool, deterministic: bool) -> None:
    net = model()
    grads = collected(Recorder(net, deterministic=deterministic), net, keep_factors=keep_factors)
    for name, rows in looped(net, (images(),), losses, N).items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)
        torch.testing.assert_close(grads.blocks[name].squared_norms(), rows.flatten(1).square().sum(1))


def test_formed_gradients_outlive_neither_inputs_nor_output_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a layer are gone before the next layer's come."""
    alive: list[weakref.ref[Tensor]] = []
    most, pieces = [0], ConvAdapter.pieces

    def counted(self: Any, call: Any, layouts: Any, backprops: Any) -> Any:
        most[0] = max(most[0], sum(one() is not None for one in alive))
        alive.append(weakref.ref(backprops[0]))
        return pieces(self, call, layouts, backprops)

    monkeypatch.setattr(ConvAdapter, "pieces", counted)
    monkeypatch.setattr(ConvGrad, "memory_cost", lambda _: {"grouped": 1})
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()) for _ in range(5))).double()
    grads = collected(Recorder(net), net, keep_factors=False)
    assert all(isinstance(grads.blocks[f"{i}.0.weight"], KeptKernels) for i in range(5))
    assert len(alive) == 5
    assert most[0] <= 1
    assert all(one() is None for one in alive)


@pytest.mark.parametrize("earlier", [0, 1], ids=["first batch", "later"])
def test_a_call_whose_gradients_are_taken_holds_its_inputs_no_longer(
    monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    """Before the backward comes to a layer, what the layers behind it were given is gone."""
    alive: list[weakref.ref[Tensor]] = []
    most, pieces = [0], ConvAdapter.pieces

    def counted(self: Any, call: Any, layouts: Any, backprops: Any) -> Any:
        most[0] = max(most[0], sum(one() is not None for one in alive))
        alive.append(weakref.ref(call.args[0]))
        return pieces(self, call, layouts, backprops)

    monkeypatch.setattr(ConvGrad, "memory_cost", lambda _: {"grouped": 1})
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()) for _ in range(5))).double()
    recorder = Recorder(net)
    for _ in range(earlier):  # the first batch also settles which modules lend parameters
        collected(recorder, net, keep_factors=False)
    monkeypatch.setattr(ConvAdapter, "pieces", counted)
    collected(recorder, net, keep_factors=False)
    assert len(alive) == 5
    assert most[0] == 0
    assert all(one() is None for one in alive)


def test_a_failure_during_backward_reaches_the_caller_and_leaves_no_hooks() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Identity(), nn.Conv2d(3, 2, 3)).double()
    recorder = Recorder(net)
    recorder.attach()
    try:
        inner = net[0](images())
        hidden = inner * 1.0
        out = net[2](hidden)
        with torch.no_grad():
            hidden.add_(1.0)
        with pytest.raises(ValueError, match="changed in place"):
            recorder.collect(out.flatten(1).sum(1))
        grads = recorder.collect(losses(net, (images(),)), keep_factors=False)
        assert grads.samples == N
    finally:
        recorder.detach()


def test_the_backward_goes_on_from_all_outputs_but_the_first() -> None:
    net = model()
    recorder = Recorder(net)
    collected(recorder, net, keep_factors=False)
    assert recorder.independence.startswith("gradients attributed by graph analysis in 4 modules")
