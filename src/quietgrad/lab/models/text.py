"""Classifiers of token sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from quietgrad.lab.data.hashed_words import PADDING, VOCABULARY


def token_count(input_shape: tuple[int, ...], model: str) -> int:
    """The length of a token sequence, or an error if the input is none."""
    if len(input_shape) != 1:
        raise ValueError(
            f"model={model!r} takes token sequences (tokens,), got input_shape={input_shape}. "
            "Choose a model for images."
        )
    return input_shape[0]


def check_heads(width: int, heads: int) -> None:
    """Refuse heads of unequal size."""
    if width % heads:
        raise ValueError(f"heads={heads} does not divide width={width}. Choose a divisor.")


class Block(nn.Module):
    """Pre-norm self-attention and feed-forward, from plain Linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Float[Tensor, "n t o"], bias: Float[Tensor, "n 1 1 t"]) -> Float[Tensor, "n t o"]:
        """x + attention, then + feed-forward; the bias is very negative at padding."""
        n, t, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, t, width))
        out: Tensor = x + self.feed_forward(x)
        return out


class TransformerClassifier(nn.Module):
    """Token and position embeddings, blocks, the mean over the real tokens, a linear head."""

    def __init__(
        self, tokens: int, num_classes: int, vocabulary: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n o"]:
        """Logits."""
        real = (ids != PADDING).to(self.head.weight.dtype)
        # Finite, so that a text without any word gets a uniform attention and not NaN.
        bias = ((1.0 - real) * -1e4)[:, None, None, :]
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        x = self.embed(ids) + self.position(positions)
        for block in self.blocks:
            x = block(x, bias)
        pooled = (self.norm(x) * real[:, :, None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.head(pooled)
        return logits


def transformer(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = VOCABULARY,
    width: int = 128,
    depth: int = 2,
    heads: int = 4,
) -> nn.Module:
    """A small transformer encoder for classification, without dropout.

    Args:
        input_shape: (tokens,).
        num_classes: number of outputs.
        vocabulary: number of token numbers, 0 being padding.
        width: of the embeddings.
        depth: number of blocks.
        heads: attention heads; must divide the width.
    """
    tokens = token_count(input_shape, "transformer")
    check_heads(width, heads)
    return TransformerClassifier(tokens, num_classes, vocabulary, width, depth, heads)
