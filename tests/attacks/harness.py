"""What every attack needs: releases read from `p.grad`, clipped sums of a run without noise, and a guessing game."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg

Losses = Callable[..., Tensor]
"""`(model, *rows) -> losses`, as a training loop would compute them."""
Build = Callable[[], nn.Module]
"""A fresh model, the same one each time."""

TRIALS = 100
CHANCE = 0.72
"""Guessing 100 fair coins right more often than this has probability 2e-6; ε at σ = 20 allows 0.51."""


def outputs(model: nn.Module, *rows: Tensor) -> Tensor:
    """Losses of a model that returns them itself."""
    losses: Tensor = model(*rows)
    return losses


def read(model: nn.Module) -> Tensor:
    """All that a release shows, in float64."""
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def releases(
    model: nn.Module,
    mechanism: qg.Mechanism,
    data: TensorDataset,
    draws: Sequence[Sequence[int]],
    losses: Losses = outputs,
    *,
    micro: int = 1 << 20,
    **options: Any,
) -> Iterator[Tensor]:
    """p.grad·qN after each of the draws; q = 1, so give `data` a power of two of records and nothing is rounded."""
    batches = qg.PoissonBatches.replay(data, draws, rate=1.0)
    with qg.Privatizer(model, mechanism, batches, **options) as private:
        for batch in batches:
            for rows in batch.split(micro):
                private.backward(losses(model, *rows))
            private.release()
            yield read(model) * len(data)


def clipped_sum(
    build: Build,
    data: TensorDataset,
    rows: Sequence[int],
    losses: Losses = outputs,
    *,
    clip: float = 1.0,
    before: Sequence[Sequence[int]] = (),
    micro: int = 1 << 20,
) -> Tensor:
    """Σ clip(g_i) as released without noise, after the steps `before` (which teach the library the model)."""
    mechanism = qg.methods.dp_sgd(clip=clip).with_noise(0.0)
    *_, last = releases(build(), mechanism, data, [*before, rows], losses, micro=micro)
    return last


@dataclass(frozen=True)
class Outcome:
    """How far one record moved the sum, in units of the clip; or why the library refused."""

    ratio: float
    refusal: str | None = None

    def holds(self, tolerance: float = 1e-6) -> bool:
        """Refused, or within the sensitivity."""
        return self.refusal is not None or self.ratio <= 1.0 + tolerance


def influence(
    build: Build,
    data: TensorDataset,
    rows: Sequence[int],
    losses: Losses = outputs,
    *,
    removed: Sequence[int] | None = None,
    clip: float = 1.0,
    **how: Any,
) -> Outcome:
    """The largest ‖S(rows) − S(rows without i)‖ / C over the records `removed` (all, if left out)."""
    try:
        whole = clipped_sum(build, data, rows, losses, clip=clip, **how)
        worst = 0.0
        for i in rows if removed is None else removed:
            others = [row for row in rows if row != i]
            without = clipped_sum(build, data, others, losses, clip=clip, **how)
            worst = max(worst, float((whole - without).norm()) / clip)
    except ValueError as error:
        return Outcome(0.0, str(error))
    return Outcome(worst)


def hits(observed: Sequence[Tensor], truth: Sequence[bool], suspicion: Callable[[Tensor], float]) -> float:
    """The part of the trials in which a positive suspicion meant that the record was there; 0 tosses a coin."""
    right = 0.0
    for seen, present in zip(observed, truth, strict=True):
        says = suspicion(seen)
        right += 0.5 if says == 0 else float((says > 0) == present)
    return right / len(truth)


def coins(count: int, seed: int = 0) -> list[bool]:
    """Whether the record takes part, trial by trial; as many heads as tails."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return [bool(place % 2) for place in order]
