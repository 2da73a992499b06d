"""Models that are sharded in the tests, the records they take, and noise that is a function of the coordinate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from quietgrad._gradients.space import rows_of_shard
from quietgrad._noise.sources import NoiseSource

RECORDS, WORDS, LENGTH = 40, 23, 7


class Block(nn.Module):
    """Attention and two linear layers, of which one has a number of rows that no world divides."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 33), nn.Linear(33, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(x)))


class TiedTransformer(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, 16), nn.Embedding(LENGTH, 16)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.head(hidden)
        return out


class LowRankLayer(nn.Module):
    """A frozen layer with a trained low-rank one beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 3, bias=False), nn.Linear(3, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def build(kind: str) -> nn.Module:
    """The same model on every rank."""
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, 1), nn.Linear(1, 5))
    if kind == "lora":
        return nn.Sequential(LowRankLayer(6, 11), nn.Tanh(), LowRankLayer(11, 5))
    return TiedTransformer()


def shard(model: nn.Module) -> nn.Module:
    """As users write it: each block, then the whole."""
    blocks = model.blocks if isinstance(model, TiedTransformer) else model
    assert isinstance(blocks, nn.Sequential | nn.ModuleList)
    for block in blocks:
        if any(True for _ in block.parameters()):
            fully_shard(block)
    fully_shard(model)
    return model


def data(kind: str, count: int = RECORDS) -> TensorDataset:
    rng = torch.Generator().manual_seed(2)
    if kind == "tied":
        return TensorDataset(torch.randint(WORDS, (count, LENGTH), generator=rng))
    return TensorDataset(torch.randn(count, 6, generator=rng), torch.randint(5, (count,), generator=rng))


def losses_of(kind: str, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    if kind == "tied":
        words = batch[0]
        return F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], reduction="none").mean(1)
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Scripted(NoiseSource):
    """Noise that is a function of the coordinate and the release, however it is split.

    Args:
        shapes: of the blocks.
        world: how many shards there are.
    """

    private, std = False, 1 << 26

    def __init__(self, shapes: Sequence[torch.Size], world: int = 1) -> None:
        self._shapes, self._world = shapes, world
        self._size = sum(shape.numel() for shape in shapes)
        self._rng = np.random.default_rng(5)
        self._mine: np.ndarray | None = None
        self._left = np.empty(0, np.int32)

    def for_shard(self, shard: int) -> NoiseSource:
        if self._mine is None:
            places, start = [], 0
            for shape in self._shapes:
                block = np.arange(start, start + shape.numel()).reshape(shape)
                places.append(block[rows_of_shard(shape[0], shard, self._world)].reshape(-1))
                start += shape.numel()
            self._mine = np.concatenate(places)
        return self

    def fill(self, out: Tensor) -> None:
        while len(self._left) < len(out):
            drawn = np.round(self._rng.standard_normal(self._size) * self.std).astype(np.int32)
            self._left = np.concatenate([self._left, drawn if self._mine is None else drawn[self._mine]])
        out.copy_(torch.from_numpy(self._left[: len(out)].copy()))
        self._left = self._left[len(out) :]

    def bits(self, count: int) -> Tensor:
        raise NotImplementedError
