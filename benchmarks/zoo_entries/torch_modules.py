"""Modules of `torch.nn`, each alone or behind a linear layer where it has no parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from benchmarks.zoo_entries.base import Call, Entry, Inputs, real, reals, tokens

ACTIVATIONS = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softmin",
    "Softmax",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "PReLU",
    "RReLU",
]


def activation(name: str) -> Callable[[], nn.Module]:
    kind = getattr(nn, name)
    options: dict[str, Any] = {"dim": 1} if name in ("LogSoftmax", "Softmax", "Softmin") else {}
    return lambda: nn.Sequential(nn.Linear(4, 6), kind(**options).eval())


def last(function: Callable[..., Any], **parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Call(function, **parts)


def recurrent(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Call(lambda m, x: m.r(x)[0], r=kind(3, 4, batch_first=True, **options))


def packed(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    def forward(m: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(m.r(rows)[0], batch_first=True, total_length=x.shape[1])
        return out

    return lambda: Call(forward, r=kind(3, 4, batch_first=True, **options))


def sequences(n: int, g: torch.Generator) -> Inputs:
    return {"x0": torch.randn(n, 5, 3, generator=g), "x1": torch.randint(1, 6, (n,), generator=g)}


def offsets(n: int, g: torch.Generator) -> Inputs:
    return {"x0": torch.randint(0, 7, (n, 3), generator=g)}


def adaptive(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = m.a(x, y).output
    return out[:, None]


def after_warm_up(module: nn.Module) -> nn.Module:
    """After many estimates of its largest singular value, so that one more changes nothing."""
    for _ in range(200):
        module(torch.zeros(1, 4))
    return module


def entries() -> Iterator[Entry]:
    def entry(name: str, build: Callable[..., nn.Module], inputs: Any) -> Entry:
        return Entry("torch.nn", name, build, inputs)

    kind: Any
    pool: Any

    for name in ACTIVATIONS:
        yield entry(name, activation(name), real(4))
    yield entry("Linear", lambda: nn.Linear(4, 3), real(5, 4))
    yield entry("Bilinear", lambda: nn.Bilinear(3, 4, 2), reals((3,), (4,)))
    for dim, kind in ((1, nn.Conv1d), (2, nn.Conv2d), (3, nn.Conv3d)):
        yield entry(f"Conv{dim}d", lambda kind=kind: kind(2, 4, 3, padding=1), real(2, *[5] * dim))
    for dim, kind in ((1, nn.ConvTranspose1d), (2, nn.ConvTranspose2d), (3, nn.ConvTranspose3d)):
        yield entry(f"ConvTranspose{dim}d", lambda kind=kind: kind(2, 4, 3, stride=2), real(2, *[4] * dim))
    yield entry(
        "ConvTranspose2d + ReLU(inplace)",
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ReLU(True), nn.Conv2d(3, 2, 2)),
        real(2, 4, 4),
    )
    yield entry("Embedding", lambda: nn.Embedding(7, 4), tokens(7, 5))
    yield entry("EmbeddingBag", lambda: nn.EmbeddingBag(7, 4), offsets)
    yield entry("LayerNorm", lambda: nn.LayerNorm(4), real(3, 4))
    yield entry("RMSNorm", lambda: nn.RMSNorm(4), real(3, 4))
    yield entry("GroupNorm", lambda: nn.GroupNorm(2, 4), real(4, 3, 3))
    for dim, kind in ((1, nn.InstanceNorm1d), (2, nn.InstanceNorm2d), (3, nn.InstanceNorm3d)):
        yield entry(f"InstanceNorm{dim}d", lambda kind=kind: kind(3, affine=True), real(3, *[4] * dim))
    for dim, kind in ((1, nn.BatchNorm1d), (2, nn.BatchNorm2d), (3, nn.BatchNorm3d)):
        yield entry(f"BatchNorm{dim}d (eval)", lambda kind=kind: kind(3).eval(), real(3, *[4] * dim))
    yield entry("BatchNorm2d (training)", lambda: nn.BatchNorm2d(3), real(3, 4, 4))
    yield entry(
        "LocalResponseNorm", lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.LocalResponseNorm(2)), real(2, 4, 4)
    )
    for pool in ("MaxPool2d", "AvgPool2d", "LPPool2d"):
        options = (2, 2) if pool == "LPPool2d" else (2,)
        yield entry(
            pool,
            lambda p=pool, o=options: nn.Sequential(nn.Conv2d(2, 3, 3), getattr(nn, p)(*o)),
            real(2, 6, 6),
        )
    yield entry(
        "AdaptiveAvgPool2d", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(2)), real(2, 6, 6)
    )
    yield entry(
        "AdaptiveMaxPool2d", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveMaxPool2d(2)), real(2, 6, 6)
    )
    yield entry("PixelShuffle", lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.PixelShuffle(2)), real(2, 5, 5))
    yield entry(
        "Upsample", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Upsample(scale_factor=2)), real(2, 5, 5)
    )
    yield entry("Unfold", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Unfold(2)), real(2, 5, 5))
    yield entry(
        "ReflectionPad2d", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReflectionPad2d(1)), real(2, 5, 5)
    )
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        yield entry(kind.__name__, recurrent(kind), real(5, 3))
        yield entry(
            f"{kind.__name__} bidirectional, 2 layers",
            recurrent(kind, num_layers=2, bidirectional=True),
            real(5, 3),
        )
        yield entry(f"{kind.__name__} packed", packed(kind), sequences)
    yield entry("LSTM dropout between layers", recurrent(nn.LSTM, num_layers=2, dropout=1e-9), real(5, 3))
    yield entry("LSTM packed, bidirectional", packed(nn.LSTM, bidirectional=True), sequences)
    yield entry("RNNCell", lambda: nn.RNNCell(3, 4), real(3))
    yield entry("GRUCell", lambda: nn.GRUCell(3, 4), real(3))
    yield entry("LSTMCell", lambda: Call(lambda m, x: m.c(x)[0], c=nn.LSTMCell(3, 4)), real(3))
    yield entry(
        "MultiheadAttention",
        lambda: Call(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2, batch_first=True)),
        real(5, 4),
    )
    yield entry(
        "TransformerEncoderLayer",
        lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True),
        real(5, 4),
    )
    yield entry(
        "TransformerEncoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), 2),
        real(5, 4),
    )
    yield entry(
        "TransformerDecoderLayer",
        lambda: nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True),
        reals((5, 4), (3, 4)),
    )
    yield entry(
        "Transformer", lambda: nn.Transformer(4, 2, 1, 1, 6, 0.0, batch_first=True), reals((5, 4), (3, 4))
    )
    yield entry("weight_norm", lambda: nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.ReLU(True)), real(4))
    yield entry(
        "parametrizations.weight_norm", lambda: parametrizations.weight_norm(nn.Linear(4, 3)), real(4)
    )
    yield entry(
        "parametrizations.spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), real(4)
    )
    yield entry(
        "utils.spectral_norm", lambda: after_warm_up(nn.utils.spectral_norm(nn.Linear(4, 3))), real(4)
    )
    yield entry("parametrizations.orthogonal", lambda: parametrizations.orthogonal(nn.Linear(4, 4)), real(4))
    yield entry(
        "AdaptiveLogSoftmaxWithLoss",
        lambda: Call(adaptive, a=nn.AdaptiveLogSoftmaxWithLoss(16, 10, [3, 6])),
        lambda n, g: {"x0": torch.randn(n, 16, generator=g), "x1": torch.randint(0, 10, (n,), generator=g)},
    )
