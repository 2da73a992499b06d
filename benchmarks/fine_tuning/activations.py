"""What MiniLM's frozen lower layers make of each sentence, computed once for every training above them.

Only the upper layers train, so that the outputs below them never change: reading them from a file is exact and saves
most of a step. They lie as they are, token after token, without padding, in chunks of sentences.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import TensorDataset

CHUNK = 4096
ROWS = 32
"""Sentences that are encoded at a time."""
KEPT = (0, 3, 4, 5)
"""Layers whose outputs are kept, 0 being the embeddings: below all six and the upper three, two and one layers."""


class Ragged:
    """Sentences of different lengths in one table of tokens.

    Args:
        tokens: of all sentences, one after the other.
        lengths: tokens of each sentence.
    """

    def __init__(self, tokens: Float[Tensor, "all d"], lengths: Int64[Tensor, " n"]) -> None:
        self.tokens, self.lengths = tokens, lengths
        self.starts = lengths.cumsum(0) - lengths

    def read(self, rows: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "n t d"], Bool[Tensor, "n t"]]:
        """Padded with zeros, and which tokens are real."""
        spans = zip(self.starts[rows].tolist(), self.lengths[rows].tolist(), strict=True)
        tokens = pad_sequence([self.tokens[start : start + most] for start, most in spans], batch_first=True)
        return tokens, torch.arange(tokens.shape[1]) < self.lengths[rows][:, None]


@torch.no_grad()
def compute(encoder: Any, parts: dict[str, TensorDataset], cache: Path, seconds: float) -> None:
    """Encode what is not in the cache yet, for about so long."""
    begun = time.perf_counter()
    cache.mkdir(parents=True, exist_ok=True)
    for part, data in parts.items():
        for start in range(0, len(data), CHUNK):
            last = cache / f"sst2_{part}_lengths_{start}.npy"
            if not last.exists() and time.perf_counter() - begun < seconds:
                for name, outputs in _chunk(encoder, data.tensors[0][start : start + CHUNK]).items():
                    np.save(cache / f"sst2_{part}_{name}_{start}.npy", outputs.numpy())
                print(last, flush=True)


def _chunk(encoder: Any, ids: Int64[Tensor, "n t"]) -> dict[str, Tensor]:
    """The kept layers' outputs, the mean of the last over the tokens, and the number of tokens."""
    kept: dict[int, list[Tensor]] = {layer: [] for layer in KEPT}
    means = []
    for few in ids.split(ROWS):
        few = few[:, : int(few.ne(0).sum(1).max())]
        real = few.ne(0)
        hidden = encoder(few, real.long(), output_hidden_states=True).hidden_states
        means.append((hidden[-1] * real[:, :, None]).sum(1) / real.sum(1, keepdim=True))
        for layer, outputs in kept.items():
            outputs.append(hidden[layer][real])
    found = {f"layer{layer}": torch.cat(outputs) for layer, outputs in kept.items()}
    return found | {"mean": torch.cat(means), "lengths": ids.ne(0).sum(1)}


@torch.no_grad()
def encoded(encoder: Any, ids: Int64[Tensor, "n t"], layer: int) -> Ragged:
    """The outputs of one kept layer for other sentences."""
    found = _chunk(encoder, ids)
    return Ragged(found[f"layer{layer}"], found["lengths"])


def cached(part: str, cache: Path, layer: int) -> Ragged:
    """The outputs of one layer."""
    return Ragged(_joined(part, f"layer{layer}", cache), _joined(part, "lengths", cache))


def cached_means(part: str, cache: Path) -> Float[Tensor, "n d"]:
    """The sentences' features: the last layer's mean over the tokens."""
    return _joined(part, "mean", cache)


def _joined(part: str, name: str, cache: Path) -> Tensor:
    files = sorted(cache.glob(f"sst2_{part}_{name}_*.npy"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    if not files:
        raise SystemExit(f"No outputs of MiniLM's layers in {cache}. Run `layers` first.")
    return torch.from_numpy(np.concatenate([np.load(file) for file in files]))
