"""Models of any depth for the laws of devices: a perceptron, a convolutional network, a transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CLASSES, WORDS, LENGTH, WIDTH, SIDE = 3, 20, 12, 16, 6


def perceptron(layers: int) -> nn.Module:
    hidden = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, WIDTH), nn.Tanh(), *hidden, nn.Linear(WIDTH, CLASSES)
    )


def convolutional(layers: int) -> nn.Module:
    hidden = [
        part for _ in range(layers) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh())
    ]
    head = nn.Linear(4 * SIDE * SIDE, CLASSES)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), *hidden, nn.Flatten(), head)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.heads(self.before(x)).view(n, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids))).mean(1))


class Tied(Transformer):
    """The words' table is also the output layer, as in GPT-2."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids)))).mean(1)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "transformer": Transformer,
    "tied transformer": Tied,
}


def make_model(name: str, layers: int = 2) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name](layers)


def make_records(name: str, count: int = 40) -> TensorDataset:
    rng = torch.Generator().manual_seed(2)
    if "transformer" in name:
        x = torch.randint(WORDS, (count, LENGTH), generator=rng)
    else:
        x = torch.randn(count, 1, SIDE, SIDE, generator=rng)
    return TensorDataset(x, torch.randint(CLASSES, (count,), generator=rng))
