"""PATE (Papernot et al. 2017, 2018), the baseline of two papers: teachers on disjoint shards vote on public inputs.

    votes n_c(x) of T teachers,   label(x) = argmax_c (n_c(x) + N(0, σ²)),   a student learns from the labels

Formal guarantee: a record belongs to one teacher, whose vote on a query moves at most: two counts change by 1, so the
histogram has sensitivity √2 and a query is a Gaussian mechanism of multiplier σ/√2. Queries compose; all are accounted,
whatever the votes were. Data-dependent bounds (smaller where teachers agree) are themselves private and not computed.
The noise is added to whole numbers, exactly (`NoiseSource.integers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._noise.sources import EntropySource
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import GaussianEvent, Phase
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.metrics import accuracy

SENSITIVITY = math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class Pate:
    """A plan.

    Args:
        teachers: T, each with a shard of the records of its own.
        queries: public inputs that are labelled.
        noise: σ of a count.
        steps: of ordinary training, for each teacher and for the student.
        lr: of Adam.
    """

    teachers: int = 50
    queries: int = 200
    noise: float = 10.0
    steps: int = 300
    lr: float = 1e-3

    def epsilon(self, delta: float) -> float:
        """Of all labels together."""
        event = GaussianEvent(noise_multiplier=self.noise / SENSITIVITY)
        return epsilon_of([Phase(event=event, rate=1.0, count=self.queries)], delta)


@dataclass(frozen=True, kw_only=True)
class PateOutcome:
    """Accuracies of the student, of the noisy labels and of a teacher on average."""

    accuracy: float
    teacher: float
    agreement: float
    epsilon: float


def train_pate(
    parts: Parts,
    plan: Pate,
    make: Callable[[], nn.Module],
    *,
    delta: float = 1e-5,
    source: qg.NoiseSource | None = None,
) -> PateOutcome:
    """Teachers, votes, student.

    Args:
        parts: the public part's inputs are labelled; its own labels are not looked at.
        make: a fresh model.
        source: of the noise; fresh entropy unless a test replays one.
    """
    if len(parts.public) < plan.queries:
        raise LabError(
            f"PATE labels {plan.queries} public inputs, the task has {len(parts.public)}. Set data.public."
        )
    queries = parts.public_inputs[: plan.queries]
    teachers = [_fitted(make(), *shard, plan) for shard in shards(parts, plan.teachers)]
    votes = count_votes([_predicted(teacher, queries) for teacher in teachers], parts.num_classes)
    labels = noisy_labels(votes, plan.noise, source or EntropySource())
    student = _fitted(make(), queries, labels, plan)
    return PateOutcome(
        accuracy=accuracy(student, parts.test),
        teacher=sum(accuracy(teacher, parts.test) for teacher in teachers[:5]) / min(5, len(teachers)),
        agreement=float((labels == votes.argmax(1)).float().mean()),
        epsilon=plan.epsilon(delta),
    )


def shards(parts: Parts, teachers: int) -> list[tuple[Tensor, Tensor]]:
    """Disjoint parts of the private records, by their order, which does not depend on them."""
    inputs, labels = parts.private.tensors
    return [(inputs[start::teachers], labels[start::teachers]) for start in range(teachers)]


def count_votes(predictions: Sequence[Int64[Tensor, " q"]], classes: int) -> Int64[Tensor, "q c"]:
    return torch.stack([F.one_hot(prediction, classes) for prediction in predictions]).sum(0)


def noisy_labels(votes: Int64[Tensor, "q c"], noise: float, source: qg.NoiseSource) -> Int64[Tensor, " q"]:
    """argmax of (S/σ)·votes + z with z of standard deviation S, all whole numbers."""
    scale = math.floor(source.std / noise)  # rounded down: never less noise than σ
    if scale < 1:
        raise LabError(f"Expected noise <= {source.std}, got {noise}.")
    drawn = source.integers(votes.numel()).view_as(votes)
    return (votes * scale + drawn.long()).argmax(1)


def _fitted(model: nn.Module, inputs: Tensor, labels: Tensor, plan: Pate, batch: int = 50) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.lr)
    for _ in range(plan.steps):
        rows = torch.randint(len(inputs), (min(batch, len(inputs)),))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return model


@torch.no_grad()
def _predicted(model: nn.Module, inputs: Tensor) -> Int64[Tensor, " q"]:
    found: Tensor = model(inputs).argmax(1)
    return found
