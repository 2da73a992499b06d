"""Every layer that the laws run over: one line to add one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.utils import prune

Build = Callable[[], nn.Module]
Inputs = Callable[[int, Generator], tuple[Tensor, ...]]
Losses = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


def smooth_losses(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """A loss per sample in which every output coordinate counts differently; samples first."""
    out = model(*inputs)
    flat = out.flatten(1)
    signs = torch.arange(flat.shape[1], dtype=flat.dtype, device=flat.device).add(1.0).sin()
    return (flat * signs).sum(1) + 0.1 * flat.square().sum(1)


@dataclass(frozen=True)
class LayerCase:
    """A small model around one layer.

    Args:
        inputs: (n, generator) → the model's arguments for n samples, float32.
    """

    name: str
    build: Build
    inputs: Inputs
    losses: Losses = smooth_losses

    def __str__(self) -> str:
        return self.name

    def model(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build().to(dtype)

    def batch(self, n: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, ...]:
        drawn = self.inputs(n, Generator().manual_seed(seed))
        return tuple(x.to(dtype) if x.is_floating_point() else x for x in drawn)


def real(*shape: int) -> Inputs:
    """One normal tensor `[n, *shape]`."""
    return lambda n, g: (torch.randn(n, *shape, generator=g),)


def tokens(vocabulary: int, *shape: int) -> Inputs:
    """One integer tensor `[n, *shape]`, with repeated tokens."""
    return lambda n, g: (torch.randint(0, vocabulary, (n, *shape), generator=g),)


class Apply(nn.Module):
    """A model from a function of its parts: `Apply(lambda m, x: m.a(m.b(x)), a=..., b=...)`."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def after(first: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(first, *rest)


class Scaled(nn.Linear):
    """A subclass with a forward of its own: the linear adapter would be wrong for it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * 2.0, self.bias)


class StandardisedConv(nn.Conv2d):
    """Weight standardisation through the inner method that stock convolutions use."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        mean, std = weight.mean((1, 2, 3), keepdim=True), weight.std((1, 2, 3), keepdim=True)
        return super()._conv_forward(x, (weight - mean) / (std + 1e-5), bias)


class SameLinear(nn.Linear):
    """A subclass that changes nothing."""


class Direct(nn.Module):
    """Parameters used in a module's own forward, beside a submodule (a vision transformer's class and position)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.place = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 4, 4))
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        return self.mix(x).tanh()


class Tied(nn.Module):
    """An embedding whose table is also the output matrix."""

    def __init__(self, tokens: int = 9, width: int = 4) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids).tanh())


class Positions(nn.Module):
    """Position embeddings that all samples share: `[1, t, d]` as in BERT, or `[t, d]`."""

    def __init__(self, batched: bool, added: bool) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(7, 4), nn.Embedding(4, 4), nn.Embedding(2, 4)
        self.batched, self.added = batched, added

    def forward(self, ids: Tensor) -> Tensor:
        numbers = torch.arange(ids.shape[1], device=ids.device)
        places = self.places(numbers[None] if self.batched else numbers)
        if not self.added:
            return (self.words(ids) * places).tanh()
        kinds = self.kinds(numbers % 2).unsqueeze(0)
        return (self.words(ids) + (places + kinds)).tanh() + kinds.expand(len(ids), -1, -1)


class Distances(nn.Module):
    """A table of distances that is turned round and added to the scores of two layers, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.distances = nn.Embedding(7, 4), nn.Embedding(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        steps = torch.arange(ids.shape[1], device=ids.device)
        bias = self.distances((steps - steps[:, None]).clamp(-2, 1) + 2).permute(2, 0, 1).unsqueeze(0)
        x = self.words(ids)
        for _ in range(2):
            heads = x.unflatten(2, (2, 2)).transpose(1, 2)
            x = ((heads @ heads.transpose(2, 3) + bias).softmax(3) @ heads).transpose(1, 2).flatten(2)
        return x


class FirstOnly(nn.Module):
    """A layer of which only some outputs reach the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.unused = nn.LSTM(3, 4, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[1][0][0]


def recurrent(kind: type[nn.RNN | nn.LSTM | nn.GRU], **options: Any) -> Build:
    return lambda: Apply(lambda m, x: m.rnn(x)[0].movedim(1, 0), rnn=kind(3, 4, **options))


def steps_first(n: int, g: Generator) -> tuple[Tensor, ...]:
    return (torch.randn(5, n, 3, generator=g),)


def attention(**options: Any) -> Build:
    return lambda: Apply(
        lambda m, x: m.a(x, x, x)[0] + x, a=nn.MultiheadAttention(4, 2, batch_first=True, **options)
    )


def cross_attention(n: int, g: Generator) -> tuple[Tensor, ...]:
    return torch.randn(n, 3, 4, generator=g), torch.randn(n, 5, 4, generator=g)


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, **options)


def twice(make: Build) -> Build:
    return lambda: Apply(lambda m, x: m.layer(m.layer(x).tanh()), layer=make())


def bag(mode: str, **options: Any) -> Build:
    return lambda: nn.EmbeddingBag(6, 3, mode=mode, **options)


def offset_bags(n: int, g: Generator) -> tuple[Tensor, ...]:
    """Bags of 0 to 3 entries with repeated indices."""
    sizes = torch.arange(n) % 4
    return torch.randint(0, 6, (int(sizes.sum()),), generator=g), torch.cat(
        [torch.zeros(1), sizes.cumsum(0)[:-1]]
    ).long()[:n]


def conv(kind: type[nn.Module], *sizes: Any, **options: Any) -> Build:
    return lambda: kind(*sizes, **options)


LAYERS: list[LayerCase] = [
    LayerCase("linear", lambda: nn.Linear(5, 3), real(5)),
    LayerCase("linear_no_bias", lambda: nn.Linear(5, 3, bias=False), real(5)),
    LayerCase(
        "linear_3d", lambda: after(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), real(6, 5)
    ),
    LayerCase("linear_4d", lambda: nn.Linear(5, 3), real(2, 3, 5)),
    LayerCase("linear_many_tokens", lambda: nn.Linear(2, 3), real(9, 2)),
    LayerCase("linear_wide", lambda: nn.Linear(12, 11), real(2, 12)),
    LayerCase("linear_subclass", lambda: SameLinear(5, 3), real(2, 5)),
    LayerCase("linear_own_forward", lambda: Scaled(5, 3), real(2, 5)),
    LayerCase(
        "linear_weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), real(2, 4)
    ),
    LayerCase("linear_pruned", lambda: prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=4), real(4)),
    LayerCase(
        "linear_merged_batch",
        lambda: Apply(lambda m, x: m.l(x.flatten(0, 1)).view(len(x), -1, 3), l=nn.Linear(5, 3)),
        real(4, 5),
    ),
    LayerCase(
        "linear_tokens_first",
        lambda: Apply(lambda m, x: m.l(x.transpose(0, 1)).transpose(0, 1), l=nn.Linear(5, 3)),
        real(4, 5),
    ),
    LayerCase(
        "linear_merged_minor",
        lambda: Apply(
            lambda m, x: m.l(x.transpose(0, 1).flatten(0, 1)).view(-1, len(x), 3).transpose(0, 1),
            l=nn.Linear(5, 3),
        ),
        real(3, 5),
    ),
    LayerCase(
        "linear_merged_inner",
        lambda: Apply(
            lambda m, x: (
                m.l(x.transpose(0, 1).flatten(1, 2)).unflatten(1, (len(x), -1)).transpose(0, 1).flatten(1)
            ),
            l=nn.Linear(5, 3),
        ),
        real(2, 3, 5),
    ),
    LayerCase("linear_twice", twice(lambda: nn.Linear(4, 4)), real(3, 4)),
    LayerCase("linear_tied", lambda: tied_linears(), real(3, 4)),
    LayerCase(
        "linear_tied_transposed",
        lambda: Apply(lambda m, x: m.a(x) + m.b(x.flip(1)), a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
        real(3, 4),
    ),
    LayerCase("linear_residual", lambda: Apply(lambda m, x: x + m.a(x), a=nn.Linear(4, 4)), real(3, 4)),
    LayerCase(
        "lora",
        lambda: Apply(
            lambda m, x: m.base(x) + m.up(m.down(x)),
            base=nn.Linear(5, 4).requires_grad_(False),
            down=nn.Linear(5, 2, bias=False),
            up=nn.Linear(2, 4, bias=False),
        ),
        real(3, 5),
    ),
    LayerCase("frozen_bias", lambda: frozen(nn.Linear(5, 3), "bias"), real(3, 5)),
    LayerCase("frozen_weight", lambda: frozen(nn.Linear(5, 3), "weight"), real(3, 5)),
    LayerCase("frozen_conv_bias", lambda: frozen(nn.Conv2d(2, 3, 2), "bias"), real(2, 4, 4)),
    LayerCase("frozen_norm_weight", lambda: frozen(nn.GroupNorm(2, 4), "weight"), real(4, 3)),
    LayerCase(
        "mlp", lambda: after(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), real(6)
    ),
    LayerCase("conv1d", conv(nn.Conv1d, 2, 3, 3), real(2, 7)),
    LayerCase("conv1d_all", conv(nn.Conv1d, 4, 6, 3, stride=2, padding=2, dilation=2, groups=2), real(4, 9)),
    LayerCase("conv1d_circular", conv(nn.Conv1d, 2, 3, 3, padding=1, padding_mode="circular"), real(2, 5)),
    LayerCase("conv2d", conv(nn.Conv2d, 2, 3, 3), real(2, 6, 5)),
    LayerCase("conv2d_stride_padding", conv(nn.Conv2d, 2, 3, 3, stride=2, padding=1), real(2, 7, 6)),
    LayerCase(
        "conv2d_uneven",
        conv(nn.Conv2d, 2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
        real(2, 6, 7),
    ),
    LayerCase("conv2d_groups", conv(nn.Conv2d, 4, 6, 3, groups=2, padding=1), real(4, 5, 5)),
    LayerCase("conv2d_depthwise", conv(nn.Conv2d, 4, 4, 3, groups=4), real(4, 5, 5)),
    LayerCase("conv2d_reflect", conv(nn.Conv2d, 2, 3, 3, padding=1, padding_mode="reflect"), real(2, 5, 5)),
    LayerCase(
        "conv2d_replicate", conv(nn.Conv2d, 2, 3, 3, padding=(1, 2), padding_mode="replicate"), real(2, 5, 5)
    ),
    LayerCase(
        "conv2d_circular", conv(nn.Conv2d, 2, 3, 3, padding=(1, 2), padding_mode="circular"), real(2, 5, 5)
    ),
    LayerCase("conv2d_same", conv(nn.Conv2d, 2, 3, (2, 4), padding="same"), real(2, 5, 5)),
    LayerCase(
        "conv2d_same_dilated", conv(nn.Conv2d, 2, 3, 4, padding="same", dilation=2, bias=False), real(2, 7, 7)
    ),
    LayerCase("conv2d_valid", conv(nn.Conv2d, 2, 3, 2, padding="valid"), real(2, 4, 4)),
    LayerCase("conv2d_wide", conv(nn.Conv2d, 8, 9, 3, padding=1, bias=False), real(8, 2, 2)),
    LayerCase("conv2d_1x1", conv(nn.Conv2d, 3, 4, 1, stride=2), real(3, 5, 5)),
    LayerCase("conv2d_twice", twice(conv(nn.Conv2d, 3, 3, 3, padding=1)), real(3, 4, 4)),
    LayerCase(
        "conv2d_two_sizes",
        lambda: Apply(lambda m, x: m.c(x).mean((2, 3)) + m.c(x[..., 1:]).mean((2, 3)), c=nn.Conv2d(2, 3, 2)),
        real(2, 4, 4),
    ),
    LayerCase("conv2d_standardised", lambda: StandardisedConv(2, 3, 3), real(2, 4, 4)),
    LayerCase(
        "conv2d_frames",
        lambda: Apply(lambda m, x: m.c(x.flatten(0, 1)).flatten(1).view(len(x), -1), c=nn.Conv2d(2, 3, 2)),
        real(3, 2, 4, 4),
    ),
    LayerCase(
        "conv2d_unbatched",
        lambda: Apply(lambda m, x: torch.stack([m.c(row) for row in x]), c=nn.Conv2d(2, 3, 2)),
        real(2, 4, 4),
    ),
    LayerCase("conv3d", conv(nn.Conv3d, 2, 3, 2, padding=1), real(2, 3, 4, 3)),
    LayerCase("conv3d_groups", conv(nn.Conv3d, 2, 4, 2, groups=2, stride=2), real(2, 4, 4, 4)),
    LayerCase(
        "conv3d_replicate", conv(nn.Conv3d, 2, 2, 3, padding=1, padding_mode="replicate"), real(2, 3, 3, 3)
    ),
    LayerCase("conv_transpose1d", conv(nn.ConvTranspose1d, 2, 3, 3, stride=2), real(2, 4)),
    LayerCase(
        "conv_transpose2d", conv(nn.ConvTranspose2d, 2, 3, 3, output_padding=1, stride=2), real(2, 3, 3)
    ),
    LayerCase("layer_norm", lambda: after(nn.Linear(4, 5), nn.LayerNorm(5)), real(3, 4)),
    LayerCase("layer_norm_2d", lambda: nn.LayerNorm((3, 4)), real(2, 3, 4)),
    LayerCase("layer_norm_no_bias", lambda: nn.LayerNorm(4, bias=False), real(4)),
    LayerCase("rms_norm", lambda: nn.RMSNorm(4), real(3, 4)),
    LayerCase("group_norm", lambda: after(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), real(2, 5, 5)),
    LayerCase("group_norm_flat", lambda: nn.GroupNorm(2, 4), real(4)),
    LayerCase("group_norm_3d", lambda: nn.GroupNorm(4, 4), real(4, 2, 2, 2)),
    LayerCase("instance_norm1d", lambda: nn.InstanceNorm1d(3, affine=True), real(3, 5)),
    LayerCase("instance_norm2d", lambda: nn.InstanceNorm2d(3, affine=True), real(3, 3, 2)),
    LayerCase("instance_norm3d", lambda: nn.InstanceNorm3d(2, affine=True), real(2, 2, 3, 2)),
    LayerCase("batch_norm_eval", lambda: nn.BatchNorm2d(3).eval(), real(3, 2, 2)),
    LayerCase("prelu", lambda: nn.PReLU(3), real(3, 4)),
    LayerCase("bilinear", lambda: Apply(lambda m, x: m.b(x, x.flip(1)), b=nn.Bilinear(3, 3, 2)), real(3)),
    LayerCase("embedding", lambda: nn.Embedding(7, 3), tokens(7, 6)),
    LayerCase("embedding_one_token", lambda: nn.Embedding(7, 3), tokens(7)),
    LayerCase("embedding_padding", lambda: nn.Embedding(5, 3, padding_idx=2), tokens(5, 6)),
    LayerCase(
        "embedding_twice",
        lambda: Apply(lambda m, x: m.e(x) + m.e(x.flip(1)).cumsum(1), e=nn.Embedding(5, 3)),
        tokens(5, 4),
    ),
    LayerCase("embedding_tied", Tied, tokens(9, 6)),
    LayerCase("positions_batched", lambda: Positions(batched=True, added=True), tokens(7, 4)),
    LayerCase("positions_flat", lambda: Positions(batched=False, added=True), tokens(7, 4)),
    LayerCase("positions_multiplied", lambda: Positions(batched=True, added=False), tokens(7, 4)),
    LayerCase("distances", Distances, tokens(7, 4)),
    LayerCase("bag_sum", bag("sum"), tokens(6, 5)),
    LayerCase("bag_of_one", bag("mean"), tokens(6, 1)),
    LayerCase("embedding_of_one", lambda: nn.Embedding(6, 3), tokens(6, 1)),
    LayerCase("bag_mean_padding", bag("mean", padding_idx=1), tokens(6, 5)),
    LayerCase("bag_max", bag("max"), tokens(6, 5)),
    LayerCase("bag_offsets", bag("sum"), offset_bags),
    LayerCase("bag_offsets_mean", bag("mean"), offset_bags),
    LayerCase("attention", attention(), real(4, 4)),
    LayerCase("attention_bias_kv", attention(add_bias_kv=True), real(3, 4)),
    LayerCase("attention_no_bias", attention(bias=False), real(4, 4)),
    LayerCase(
        "attention_cross",
        lambda: Apply(lambda m, q, k: m.a(q, k, k)[0], a=nn.MultiheadAttention(4, 2, batch_first=True)),
        cross_attention,
    ),
    LayerCase(
        "attention_three",
        lambda: Apply(
            lambda m, q, k: m.a(q, k, k.tanh())[0], a=nn.MultiheadAttention(4, 2, batch_first=True)
        ),
        cross_attention,
    ),
    LayerCase(
        "attention_other_widths",
        lambda: Apply(
            lambda m, q, k: m.a(q, k[..., :3], k[..., :2])[0],
            a=nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True),
        ),
        cross_attention,
    ),
    LayerCase("encoder_layer", lambda: encoder_layer(batch_first=True), real(3, 4)),
    LayerCase("encoder_norm_first", lambda: encoder_layer(batch_first=True, norm_first=True), real(3, 4)),
    LayerCase(
        "encoder_default",
        lambda: Apply(
            lambda m, x: m.e(x.transpose(0, 1)).transpose(0, 1),
            e=nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False),
        ),
        real(3, 4),
    ),
    LayerCase(
        "encoder_square",
        lambda: Apply(lambda m, x: m.e(x.transpose(0, 1)).transpose(0, 1), e=encoder_layer()),
        real(4, 4),
    ),
    LayerCase(
        "decoder_layer",
        lambda: Apply(
            lambda m, q, k: m.d(q, k), d=nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        ),
        cross_attention,
    ),
    LayerCase("rnn", recurrent(nn.RNN), steps_first),
    LayerCase("gru", recurrent(nn.GRU), steps_first),
    LayerCase("gru_bidirectional", recurrent(nn.GRU, bidirectional=True), steps_first),
    LayerCase("lstm", recurrent(nn.LSTM), steps_first),
    LayerCase("lstm_two_layers", recurrent(nn.LSTM, num_layers=2, bias=False), steps_first),
    LayerCase("lstm_projected", recurrent(nn.LSTM, proj_size=2), steps_first),
    LayerCase("lstm_last_state", FirstOnly, real(4, 3)),
    LayerCase(
        "lstm_cell",
        lambda: Apply(lambda m, x: m.c(x[:, 1], m.c(x[:, 0]))[0], c=nn.LSTMCell(3, 4)),
        real(2, 3),
    ),
    LayerCase("direct_parameters", Direct, real(3, 4)),
]


def tied_linears() -> nn.Module:
    """One weight in two layers, one of them with a bias."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return after(first, nn.Tanh(), second)


def frozen(module: nn.Module, name: str) -> nn.Module:
    getattr(module, name).requires_grad_(False)
    return module
