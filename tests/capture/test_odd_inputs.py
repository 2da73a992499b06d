"""Layers in surroundings that are correct but unusual: packed, strided, half, spectral, counted in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import quietgrad as qg
from quietgrad._capture.recorder import Recorder
from tests.cases.layers import Apply
from tests.cases.world import privatizer, small_net
from tests.reference import Losses, looped

N = 4


def images(*shape: int) -> Tensor:
    return torch.randn(N, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def squares(model: nn.Module, inputs: Any) -> Tensor:
    return model(*inputs).square().flatten(1).sum(1)


def check(model: nn.Module, inputs: tuple[Tensor, ...], losses: Losses = squares, n: int = N) -> None:
    expected = looped(model, inputs, losses, n)
    recorder = Recorder(model)
    recorder.attach()
    grads = recorder.collect(losses(model, inputs))
    recorder.detach()
    for name, rows in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), rows)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
def test_packed_sequences_equal_the_loop(kind: Any, options: dict[str, Any]) -> None:
    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        rows = pack_padded_sequence(m.before(x), lengths, batch_first=True, enforce_sorted=False)
        out, state = m.r(rows)
        last = state[0] if isinstance(state, tuple) else state
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        return torch.cat([padded.flatten(1), last.transpose(0, 1).flatten(1)], 1)

    model = Apply(forward, before=nn.Linear(3, 3), r=kind(3, 2, batch_first=True, **options)).double()
    check(model, (images(5, 3), torch.tensor([2, 5, 1, 3])))


@pytest.mark.parametrize("old", [False, True])
def test_spectral_norms_are_accepted_and_their_buffers_kept(old: bool) -> None:
    line = nn.Linear(3, 3)
    normed = spectral_norm(line) if old else parametrizations.spectral_norm(line)
    model = nn.Sequential(nn.Linear(3, 3), normed).double()
    for _ in range(300):  # until one more estimate changes nothing
        model(images(3))
    check(model, (images(3),))


@pytest.mark.parametrize("n", [1, 2, N])
@pytest.mark.parametrize("how", ["channels_last", "transposed", "expanded"])
def test_group_norm_takes_strided_gradients(n: int, how: str) -> None:
    def losses(model: nn.Module, inputs: Any) -> Tensor:
        out = model(*inputs)
        if how == "channels_last":
            out = out.contiguous(memory_format=torch.channels_last).tanh()
        elif how == "transposed":
            out = out.flatten(2).transpose(1, 2).tanh()
        weight = torch.arange(out[0].numel(), dtype=out.dtype).sin()
        return out.flatten(1).sum(1) if how == "expanded" else (out.flatten(1) * weight).sum(1)

    norm = nn.GroupNorm(2, 4)
    nn.init.normal_(norm.weight)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), norm).double()
    check(model, (images(2, 5, 5)[:n],), losses, n)
    inputs = images(2, 5, 5)[:n].contiguous(memory_format=torch.channels_last)
    check(model, (inputs,), losses, n)


def test_operations_in_place_may_follow_a_replayed_module() -> None:
    check(
        nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ReLU(True), nn.Conv2d(3, 2, 2)).double(),
        (images(2, 4, 4),),
    )


def test_adaptive_softmax_equals_the_loop() -> None:
    model = Apply(
        lambda m, x, y: m.a(m.b(x), y).output[:, None],
        b=nn.Linear(16, 16),
        a=nn.AdaptiveLogSoftmaxWithLoss(16, 10, [3, 6]),
    ).double()
    check(model, (images(16), torch.tensor([1, 9, 4, 2])))


def test_a_sample_without_tokens_has_no_gradient() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.bool)

    def losses(model: nn.Module, inputs: Any) -> Tensor:
        each = model(inputs[0][mask]).square().sum(1)
        return torch.zeros(N, dtype=torch.float64).index_add(0, mask.nonzero()[:, 0], each)

    check(nn.Linear(3, 2).double(), (images(3, 3),), losses)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)


@pytest.mark.parametrize("how", ["autocast", "weights"])
@pytest.mark.parametrize("build", [small_net, encoder])
def test_bfloat16_is_accepted_and_near_the_truth(build: Any, how: str) -> None:
    model, shape = build(), (1, 6, 6) if build is small_net else (3, 4)
    x = images(*shape).float()
    expected = looped(model.double(), (x.double(),), squares, N)
    model = model.float() if how == "autocast" else model.bfloat16()
    recorder = Recorder(model)
    recorder.attach()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
        losses = squares(model, (x if how == "autocast" else x.bfloat16(),)).float()
    grads = recorder.collect(losses)
    recorder.detach()
    total = sum(rows.square().sum() for rows in expected.values())
    off = sum((grads.blocks[name].dense().double() - rows).square().sum() for name, rows in expected.items())
    assert off < 0.01 * total


def test_two_losses_of_a_micro_batch_are_refused_with_the_remedy() -> None:
    with privatizer(qg.methods.dp_sgd(clip=1.0).with_noise(1.0), [[0, 1]]) as (private, batches, model):
        x, _ = next(next(iter(batches)).split(2))
        private.backward(model(x).sum(1))
        with pytest.raises(ValueError, match="add them row by row"):
            private.backward(model(x).square().sum(1))


class Temperature(nn.Module):
    """One number, without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale.exp() * x


class Pooled(nn.Module):
    """Learned queries that every sample attends with."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 2, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(self.queries.expand(len(x), -1, -1), x, x)[0]
        return out


@pytest.mark.parametrize("n", [1, N])
def test_a_parameter_without_dimensions_equals_the_loop(n: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), Temperature(), nn.Linear(4, 2)).double()
    check(model, (images(3)[:n],), n=n)


@pytest.mark.parametrize("n", [1, N])
def test_learned_queries_equal_the_loop(n: int) -> None:
    check(nn.Sequential(nn.Linear(4, 4), Pooled()).double(), (images(3, 4)[:n],), n=n)
