"""Small models, some of which let records influence each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.independence.data import CLASSES, FEATURES, WORDS


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def mlp(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), *(between or (nn.Tanh(),)), nn.Linear(16, CLASSES))


def cnn(*between: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        *(between or (nn.ReLU(),)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


class Words(nn.Module):
    """An embedding, something in between, and a head."""

    def __init__(self, between: nn.Module | None = None, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, width), nn.Linear(width, CLASSES)
        self.between = between


class MeanOfWords(Words):
    """The mean over all positions, or over words alone."""

    def __init__(self, masked: bool, dropout: float = 0.0) -> None:
        super().__init__(nn.Dropout(dropout))
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(self.embedding(x))  # type: ignore[misc]
        mask = (x > 0)[..., None]
        return self.head((h * mask).sum(1) / mask.sum(1) if self.masked else h.mean(1))


class LargestWord(Words):
    def __init__(self, masked: bool) -> None:
        super().__init__(nn.Conv1d(8, 8, 3, padding=1))
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        keep = (x > 0)[..., None]
        h = self.embedding(x)
        h = self.between((h * keep if self.masked else h).mT).mT  # type: ignore[misc]
        return self.head((h.masked_fill(~keep, -1e4) if self.masked else h).amax(1))


class Recurrent(Words):
    """The last state, of the padding or of the last word."""

    def __init__(self, kind: type[nn.Module], masked: bool, packed: bool = False) -> None:
        super().__init__(kind(8, 8, batch_first=True))
        self.masked, self.packed = masked, packed

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 0).sum(1)
        h: Any = self.embedding(x)
        if self.packed:
            h = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.between(h)[0], batch_first=True)  # type: ignore[misc]
        else:
            out, _ = self.between(h)  # type: ignore[misc]
        last = lengths - 1 if self.masked or self.packed else torch.full_like(lengths, x.shape[1] - 1)
        return self.head(out[torch.arange(len(x)), last])


class Attention(Words):
    def __init__(self, masked: bool, dropout: float = 0.0) -> None:
        super().__init__(nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True), width=16)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(self.embedding(x), src_key_padding_mask=(x == 0) if self.masked else None)  # type: ignore[misc]
        return self.head(h[:, 0])


class CausalLeftPadded(Words):
    """Positions counted from the left, padding included."""

    def __init__(self) -> None:
        super().__init__(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), width=16)
        self.places = nn.Embedding(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.places(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.between(h, src_mask=mask)[:, -1])  # type: ignore[misc]


class Fourier(Words):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.fft(self.embedding(x), dim=1).real[:, 0] / 10)


class OfTheBatch(nn.Module):
    """A linear layer whose inputs see the batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES), kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.kind == "centre":
            h = h - h.mean(0)
        elif self.kind == "centre in training":
            h = h - h.mean(0) if self.training else h
        elif self.kind == "detached centre":
            h = h - h.detach().mean(0)
        elif self.kind == "attention":
            h = torch.softmax(h @ h.T, 1) @ h
        elif self.kind == "softmax":
            h = torch.softmax(h, 0)
        elif self.kind == "batch norm":
            h = F.batch_norm(h, None, None, training=True)
        elif self.kind == "cumulative":
            h = h.cumsum(0)
        elif self.kind == "median":
            h = h - h.median(0).values
        elif self.kind == "whitened":
            u, _, v = torch.linalg.svd(h - h.mean(0), full_matrices=False)
            h = u @ v
        elif self.kind == "ranks":
            h = h * x.sum(1).argsort().argsort()[:, None]
        elif self.kind == "capacity":  # the first half by score are served
            served = h.sum(1).argsort(descending=True)[: len(h) // 2]
            h = torch.zeros_like(h).index_copy(0, served, h[served])
        elif self.kind == "quantile":
            h = h.clamp_max(h.detach().flatten().quantile(0.5).item())
        elif self.kind == "norm":
            h = h / h.norm()
        elif self.kind == "largest":
            h = h / h.detach().abs().max()
        elif self.kind == "gradient of the batch":
            inputs = h.detach().requires_grad_()
            (slope,) = torch.autograd.grad(inputs.mean(0).pow(2).sum(), inputs)
            h = h + 8 * slope
        elif self.kind == "retained":
            h.retain_grad()
            h = h - h.mean(0)
        elif self.kind == "hook":
            h.register_hook(lambda g: g + g.flip(0))
        elif self.kind == "function":
            h = MeanInBackward.apply(h)
        elif self.kind == "scores":
            h = h * (h @ h.T).softmax(1).diagonal()[:, None]
        return self.last(h)


class MeanInBackward(torch.autograd.Function):
    """Mixes gradients alone."""

    @staticmethod
    def forward(_: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(_: Any, g: Tensor) -> Tensor:
        return g - g.mean(0)


BATCH_KINDS = (
    "centre",
    "centre in training",
    "detached centre",
    "attention",
    "softmax",
    "batch norm",
    "cumulative",
    "median",
    "whitened",
    "ranks",
    "capacity",
    "quantile",
    "norm",
    "largest",
    "gradient of the batch",
    "retained",
    "hook",
    "function",
    "scores",
)


class PerSampleExperts(nn.Module):
    """Each record goes to the expert with the largest score of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(FEATURES, 3)
        self.experts = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).softmax(1)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = scores.argmax(1)
        each = torch.arange(len(x))
        return outputs[each, chosen] * scores[each, chosen][:, None]
