"""Graph analysis agrees with probing, and knows every common operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from quietgrad._capture.graph import Graph
from quietgrad._capture.graph_analysis import GraphAnalysis
from quietgrad._capture.layout import BatchAxis, Layout
from quietgrad._capture.probing import SampleCode, matches_layout

N, T, D = 6, 4, 6
Operation = Callable[[Tensor], Tensor]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def self_attention(z: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(z, z, z)


W, V = numbers(D, 5, seed=1), numbers(D, seed=2)
IDS = torch.randint(0, T, (N,), generator=torch.Generator().manual_seed(3))

APART: dict[str, Operation] = {
    "elementwise": lambda z: (z.tanh() * z.exp() / (1 + z.square())).relu() - F.gelu(z),
    "broadcast": lambda z: z * V + torch.ones(T, 1, dtype=z.dtype),
    "mask": lambda z: z.masked_fill(z > 1, 0.0) + torch.where(z > 0, z, -z),
    "matmul": lambda z: z @ W,
    "addmm": lambda z: F.linear(z, W.T, W[0]),
    "own attention": lambda z: (z @ z.mT).softmax(-1) @ z,
    "fused attention": lambda z: self_attention(z.view(N, T, 2, D // 2).transpose(1, 2)),
    "transposed": lambda z: z.transpose(0, 1).cumsum(0).transpose(0, 1),
    "permuted": lambda z: z.permute(2, 0, 1).softmax(2).permute(1, 2, 0),
    "merged": lambda z: z.reshape(N * T, D).mul(2).log_softmax(1).view(N, T * D),
    "merged minor": lambda z: z.transpose(0, 1).reshape(T * N, D).tanh().view(T, N, D).transpose(0, 1),
    "reduced": lambda z: z.mean(1) + z.amax(1) + z.max(1)[0] + z.logsumexp(1) + z.std(1) + z.norm(dim=1),
    "kept": lambda z: z - z.mean((1, 2), keepdim=True),
    "norms": lambda z: F.layer_norm(z, (D,)) + F.group_norm(z, 2) + F.rms_norm(z, (D,)),
    "select": lambda z: z[:, 0] + z[:, -1],
    "slice": lambda z: z[:, 1:].narrow(2, 0, 2),
    "split": lambda z: torch.cat([part.tanh() for part in z.split(2, 1)], 1) + torch.stack(z.unbind(1), 1),
    "chunks of a doubled batch": lambda z: torch.cat([z, z.sin()]).mul(2).chunk(2)[1],
    "stack": lambda z: torch.stack([z, z.sin()], 1),
    "sort": lambda z: z.sort(1)[0] + z.cumsum(2).flip(1).roll(1, 1),
    "topk": lambda z: z.topk(2, 1)[0],
    "gather": lambda z: z.gather(2, torch.zeros(N, T, 1, dtype=torch.long)),
    "the last token": lambda z: z[torch.arange(N), IDS],
    "some columns": lambda z: z[:, :, torch.tensor([0, 2])] + z[..., torch.tensor([1, 1])],
    "columns of rows": lambda z: z[torch.arange(N)[:, None], IDS[:, None] // 2 + torch.arange(2)],
    "index_select": lambda z: z.index_select(1, torch.tensor([1, 0])),
    "convolution": lambda z: F.conv1d(z, numbers(3, T, 2)),
    "pooling": lambda z: F.max_pool2d(F.pad(z[:, None], (1, 1)), 2) + F.avg_pool2d(F.pad(z[:, None], (1, 1)), 2),
    "pool1d": lambda z: F.adaptive_avg_pool1d(z, 2),
    "upsample": lambda z: F.interpolate(z[:, None], scale_factor=2, mode="bilinear"),
    "reflect": lambda z: F.pad(z, (1, 1), mode="reflect"),
    "patches": lambda z: F.unfold(z[:, None], 2),
    "windows": lambda z: z.unfold(1, 2, 1),
    "glu": lambda z: F.glu(z, 1),
    "repeat": lambda z: z.repeat(1, 2, 1) + z.repeat(1, 2, 1),
    "expand": lambda z: z[:, None].expand(N, 3, T, D).reshape(N * 3, T, D).view(N, -1),
    "cross entropy": lambda z: F.cross_entropy(z[:, 0], IDS, reduction="none")[:, None],
    "token losses": lambda z: F.cross_entropy(z.mT, IDS[:, None].expand(N, T), reduction="none"),
    "flat token losses": lambda z: F.cross_entropy(
        z.flatten(0, 1), IDS.repeat_interleave(T), reduction="none"
    ).view(N, T),
    "losses": lambda z: F.mse_loss(z, -z, reduction="none")
    + F.binary_cross_entropy_with_logits(z, z.sigmoid().detach(), reduction="none"),
    "fourier": lambda z: torch.fft.rfft(z, dim=1).abs(),
    "cast": lambda z: z.float().bfloat16().double(),
}  # fmt: skip

UNKNOWN: dict[str, Operation] = {
    "mean over the batch": lambda z: z - z.mean(0),
    "softmax over the batch": lambda z: z.softmax(0),
    "attention over the batch": lambda z: self_attention(z.transpose(0, 1)).transpose(0, 1),
    "similarities": lambda z: z[:, 0] @ z[:, 0].T,
    "sorted samples": lambda z: z[IDS.argsort()],
    "mask": lambda z: z[z > -9].view(N, T, D),
    "cumulative": lambda z: z.cumsum(0),
    "shifted": lambda z: z.roll(1, 0),
    "flipped": lambda z: z.flip(0),
    "square": lambda z: z[:, 0] + z[:, 0].T,
    "of all": lambda z: z / z.norm(),
    "batch statistics": lambda z: F.batch_norm(z, None, None, training=True),
    "half of the batch": lambda z: torch.cat([z[3:], z[:3]]),
}


def state(operation: Operation) -> tuple[Layout | BatchAxis, Tensor, Tensor, SampleCode]:
    """What the graph says of z `[n, t, d]`, and z's gradient under plain losses and under losses 2^k."""
    leaf = numbers(N, T, D).requires_grad_()
    z = leaf * 1.0
    out = operation(z)
    losses = (out.flatten(1) * numbers(*out.flatten(1).shape, seed=5)).sum(1)
    code = SampleCode(N, half=False)
    analysis = GraphAnalysis(Graph.of(losses), N)
    plain, scaled = (
        torch.autograd.grad(losses, z, factors, retain_graph=True)[0]
        for factors in (torch.ones_like(losses), code.factors(0, losses))
    )
    return analysis.at(get_gradient_edge(z)), plain, scaled, code


@pytest.mark.parametrize("name", APART)
def test_samples_that_stay_apart_have_a_layout(name: str) -> None:
    found, plain, scaled, code = state(APART[name])
    assert found == Layout(0)
    assert matches_layout(plain, scaled, code.exponents(0), found)


@pytest.mark.parametrize("name", UNKNOWN)
def test_the_batch_axis_of_what_may_mix_is_unknown(name: str) -> None:
    found, *_ = state(UNKNOWN[name])
    assert found in (BatchAxis.UNKNOWN, BatchAxis.ABSENT)


def test_what_all_samples_share_has_no_batch_axis() -> None:
    places = numbers(T, D).requires_grad_()
    losses = (numbers(N, T, D) * (places * 1.0).unsqueeze(0).expand(N, -1, -1)).sum((1, 2))
    assert GraphAnalysis(Graph.of(losses), N).at(get_gradient_edge(places)) is BatchAxis.ABSENT
