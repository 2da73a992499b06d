"""What the fine-tuning benchmark's private model teaches all weights on public sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.fine_tuning import cores, sst2, student
from benchmarks.fine_tuning.classifier import Classifier
from torch import Tensor, nn

WIDTH = 6


class Layer(nn.Module):
    """Residual, with the names of BERT's matrices' parents."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})

    def forward(self, hidden: Tensor, _: Tensor) -> Tensor:
        return hidden + torch.tanh(self.inner["dense"](hidden))


class Small(Classifier):
    """A classifier of two such layers with cores."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        layers: Any = nn.ModuleList([Layer(), Layer()])
        self.layers = layers
        for layer in layers:
            layer.inner["dense"] = cores.Cored(
                layer.inner["dense"], torch.randn(WIDTH, 2), torch.randn(2, WIDTH)
            )
            nn.init.normal_(layer.inner["dense"].core.weight)
        self.head = nn.Linear(WIDTH, 2)


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    return Small()


def test_targets_are_bayes_rule() -> None:
    """Against the four joint probabilities of a sentence's and its review's sign."""
    z, praised = torch.tensor([2.0, -1.0, 0.5, -0.3]), torch.tensor([1.0, 1.0, 1.0, -1.0])
    p = 4 / 6  # three of the four signs agree, and one more of either kind
    for log_odds, review, found in zip(z, praised, student.targets(z, praised), strict=True):
        positive = float(torch.sigmoid(log_odds))
        joint = [
            positive * (p if review > 0 else 1 - p),
            (1 - positive) * (1 - p if review > 0 else p),
        ]
        assert float(found) == pytest.approx(joint[0] / sum(joint), rel=1e-6)


def test_signs_that_always_agree_are_no_certainty() -> None:
    found = student.targets(torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0]))
    assert bool(((found > 0) & (found < 1)).all())


def test_merged_cores_compute_the_same_and_are_gone(model: Small) -> None:
    hidden, real = torch.randn(5, 3, WIDTH), torch.ones(5, 3, dtype=torch.bool)
    before = model(hidden, real)
    cores.merge(model.layers)
    torch.testing.assert_close(model(hidden, real), before)
    assert not any(isinstance(module, cores.Cored) for module in model.modules())


def test_all_weights_learn_what_the_model_and_the_reviews_say(
    model: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(student, "RATE", 0.02)
    embeddings = nn.Embedding(20, WIDTH)
    ids = torch.randint(1, 20, (640, 4)).sort(dim=1).values
    z = student._log_odds(model, embeddings, ids).detach()
    praised = torch.where(torch.rand(640) < torch.sigmoid(2 * z), 1.0, -1.0)
    aims = student.targets(z, praised)
    kept, matrix = embeddings.weight.clone(), _merged(model)
    student.teach(model, embeddings, student.Lessons(ids, praised))
    learned = student._log_odds(model, embeddings, ids).detach()
    assert float(F.binary_cross_entropy_with_logits(learned, aims)) < float(
        F.binary_cross_entropy_with_logits(z, aims)
    )
    assert torch.equal(embeddings.weight, kept)
    assert not torch.equal(model.layers[0].inner["dense"].weight, matrix)


def _merged(model: Small) -> Tensor:
    dense = model.layers[0].inner["dense"]
    return (dense.linear.weight + dense.left @ dense.core.weight @ dense.right).detach()


def test_batches_are_every_sentence_once() -> None:
    batches = student._shuffled(2_500)
    assert sorted(torch.cat(batches).tolist()) == list(range(2_500))
    assert {len(few) for few in batches} <= {student.BATCH, 2_500 % 1_024 % student.BATCH}


def test_a_student_of_some_layers_is_refused(tmp_path: Path) -> None:
    plan = sst2.Plan(lr=1e-3, steps=1, batch=1, top=3, seed=0, student=10)
    with pytest.raises(SystemExit, match="--top 6"):
        sst2.tune("core", 8.0, plan, tmp_path)
