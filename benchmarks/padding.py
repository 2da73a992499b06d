"""What padding costs: a private step on texts of unequal length, padded in several manners.

    python -m benchmarks.padding            a table
    python -m benchmarks.padding --json     {"rows": [{"pad_to", "positions", "ms", "ratio"}, ...]}

Texts have lengths of a log-normal distribution between 3 and 256, most of them short, as sentences have. One model of
each kind takes its steps in turn with every manner of padding, so that other work on the machine meets all of them.
Milliseconds are processor time of one thread. `positions` is how many padded words a step computes per record.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg

WORDS, LONGEST, MICRO_BATCH = 1000, 256, 32
MANNERS: tuple[Any, ...] = ("longest", 256, 64, (16, 32, 64, 128, 256), (64, 256))
"""To the longest of a micro-batch; the constant that holds all; cut; length classes, many and few."""


@dataclass(frozen=True)
class Row:
    """Time of a step, and the same as a multiple of padding to the longest."""

    model: str
    pad_to: str
    positions: float
    ms: float
    ratio: float


class Classifier(nn.Module):
    """Words, an encoder, the mean over words, a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 64), nn.Linear(64, 2)
        self.encoder: nn.Module | None = None
        if kind == "transformer":
            self.encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask, h = x > 0, self.embedding(x)
        if self.encoder is not None:
            h = self.encoder(h, src_key_padding_mask=~mask)
        logits: Tensor = self.head((h * mask[..., None]).sum(1) / mask.sum(1)[:, None])
        return logits


def texts(count: int) -> list[tuple[Tensor, int]]:
    """Log-normal lengths with a median of 18 words."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.empty(count).log_normal_(2.9, 0.8, generator=generator).clamp(3, LONGEST).long().tolist()
    return [(torch.randint(1, WORDS, (length,), generator=generator), length % 2) for length in lengths]


class Training:
    """One model with one manner of padding, step by step."""

    def __init__(self, kind: str, pad_to: Any, steps: int) -> None:
        records = texts(4096)
        self.pad_to, self.model = pad_to, Classifier(kind)
        batches = qg.PoissonBatches(records, rate=256 / len(records), steps=steps, pad_to=pad_to)
        self.private = qg.Privatizer(self.model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
        self._drawn = iter(batches)
        self.positions = self.rows = 0
        self.times: list[float] = []

    def step(self) -> None:
        start = time.process_time()
        for x, y in next(self._drawn).split(MICRO_BATCH):
            if not self.private.independence.is_asking:
                self.positions, self.rows = self.positions + x.numel(), self.rows + len(x)
            self.private.backward(F.cross_entropy(self.model(x), y, reduction="none"))
        self.private.release()
        self.times.append(1e3 * (time.process_time() - start))


def measure(kind: str, repeats: int) -> list[Row]:
    """Steps of all manners in turn; the first two, which ask about their records, do not count."""
    trainings = [Training(kind, pad_to, repeats + 2) for pad_to in MANNERS]
    for _ in range(repeats + 2):
        for training in trainings:
            training.step()
    medians = [statistics.median(training.times[2:]) for training in trainings]
    return [
        Row(kind, str(t.pad_to), t.positions / t.rows, median, median / medians[0])
        for t, median in zip(trainings, medians, strict=True)
    ]


def table(rows: list[Row]) -> str:
    lines = [
        "| model | `pad_to` | positions per record | ms | against the longest |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r.model} | `{r.pad_to}` | {r.positions:.0f} | {r.ms:.0f} | ×{r.ratio:.2f} |" for r in rows]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Times private steps on texts of unequal length.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--models", default="mean of words,transformer", help="comma-separated names")
    parser.add_argument("--repeats", type=int, default=8, help="steps of each manner")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [row for kind in options.models.split(",") for row in measure(kind, options.repeats)]
    print(json.dumps({"rows": [asdict(row) for row in rows]}) if options.json else table(rows))


if __name__ == "__main__":
    main()
