"""PATE: disjoint teachers, votes of sensitivity √2, noise that the ledger knows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.papers.pate import Pate, count_votes, noisy_labels, shards, train_pate

pytestmark = pytest.mark.slow


def clouds(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    return torch.randn(n, 6, generator=generator) + 2.5 * torch.eye(3, 6)[labels], labels


def task(public: int = 60) -> Parts:
    return Parts(private=TensorDataset(*clouds(400, 0)), public=TensorDataset(clouds(public, 1)[0]),
                 test=TensorDataset(*clouds(300, 2)), num_classes=3, input_shape=(6,), record={})  # fmt: skip


def test_a_record_has_one_teacher_and_moves_its_histogram_by_root_two() -> None:
    found = shards(task(), 7)
    assert sum(len(labels) for _, labels in found) == 400
    before = [torch.tensor([0, 1]), torch.tensor([2, 1])]
    after = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    change = (count_votes(before, 3) - count_votes(after, 3)).double().norm(dim=1)
    assert change.max() == pytest.approx(math.sqrt(2))


def test_epsilon_is_that_of_all_queries_together() -> None:
    plan = Pate(noise=20.0, queries=50)
    one = qg.accounting.Phase(
        event=qg.accounting.GaussianEvent(noise_multiplier=20 / math.sqrt(2 * 50)), rate=1.0, count=1
    )
    assert plan.epsilon(1e-5) == pytest.approx(qg.accounting.epsilon([one], 1e-5), rel=0.01)


def test_the_noise_on_a_count_has_the_stated_size() -> None:
    """Two classes n votes apart are exchanged with probability Φ(−n/(σ√2))."""
    votes = torch.tensor([[10, 0]]).repeat(4_000, 1)
    wrong = float((noisy_labels(votes, 10.0, qg.SeededSource(0)) == 1).double().mean())
    expected = 0.5 * math.erfc(10 / (10 * math.sqrt(2)) / math.sqrt(2))
    assert wrong == pytest.approx(expected, abs=4 * math.sqrt(expected / 4_000))


def test_a_student_learns_from_noisy_votes() -> None:
    torch.manual_seed(0)
    outcome = train_pate(
        task(), Pate(teachers=10, queries=60, noise=1.0, steps=60, lr=0.05), lambda: nn.Linear(6, 3)
    )
    assert outcome.accuracy > 0.8
    assert outcome.agreement > 0.9
    with pytest.raises(LabError, match="labels 200 public inputs"):
        train_pate(task(), Pate(), lambda: nn.Linear(6, 3))
