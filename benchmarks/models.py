"""The five models of the engine's benchmark, with a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quietgrad.lab.models import build

CLASSES = 10


class Block(nn.Module):
    """Pre-norm attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mixing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mixing = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Float[Tensor, "n t i"]) -> Float[Tensor, "n t i"]:
        n, t, i = x.shape
        parts = self.qkv(self.before_attention(x)).view(n, t, 3, self.heads, i // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, i)
        x = x + self.out(attended)
        out: Tensor = x + self.mixing(self.before_mixing(x))
        return out


class Transformer(nn.Module):
    """Token and position embeddings, blocks, a linear head on the mean."""

    def __init__(self, vocabulary: int = 8000, tokens: int = 64, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n o"]:
        # Repeated, not expanded: Opacus' ghost mode needs contiguous ids.
        places = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        x = self.blocks(self.words(ids) + self.places(places))
        out: Tensor = self.head(self.norm(x).mean(1))
        return out


Losses = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(outputs, inputs, labels) -> a loss for each sample."""


def of_classes(logits: Float[Tensor, "n o"], _: Tensor, labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    return nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Setting:
    """A model, the shape of its batch and its losses."""

    name: str
    model: Callable[[], nn.Module]
    batch: int
    inputs: Callable[[int], Tensor]
    losses: Losses = of_classes


def mlp(width: int = 1024) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def images(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def words(vocabulary: int, tokens: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(0, vocabulary, (n, tokens), generator=torch.Generator().manual_seed(0))


SETTINGS = (
    Setting("mlp", mlp, 512, images(784)),
    Setting("tanh_cnn", lambda: build("tanh_cnn", (1, 28, 28), CLASSES), 512, images(1, 28, 28)),
    Setting("end_to_end_cnn", lambda: build("end_to_end_cnn", (3, 32, 32), CLASSES), 128, images(3, 32, 32)),
    Setting("resnet20", lambda: build("resnet20", (3, 32, 32), CLASSES), 128, images(3, 32, 32)),
    Setting("transformer", Transformer, 32, words(8000, 64)),
)
