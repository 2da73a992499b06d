"""What a private model has learned, taught once more on public sentences, to all weights and without noise.

Private training moves few numbers, because noise goes to each. Its result is released, so that it may label public text
for nothing: all weights then learn from it, as many as there are. A sentence of a public review brings evidence of its
own, whether the review praises. With z the private model's log-odds that a sentence is positive, and r = ±1 for its
review, Bayes' rule has, if all that ties a sentence to its review is that their signs agree with probability p,

    log-odds(positive | sentence, review) = z + r·log(p/(1 - p)).

p is counted: how often the sign of z is the review's. The model errs, so that this is a little below the truth.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from benchmarks.fine_tuning import cores
from benchmarks.fine_tuning.classifier import HEAD_RATE, TOKENS, Classifier
from benchmarks.fine_tuning.film_reviews import reviews
from quietgrad.integrations.text_folder import FolderTokens

LONGEST = 24
"""Words of a sentence; SST-2's have about as many at most, and short ones are cheap."""
BATCH = 32
RATE = 4e-5
"""That of the film reviews' start."""


class Lessons(NamedTuple):
    """Public sentences by length, and whether their reviews praise: 1 or -1."""

    ids: Int64[Tensor, "n t"]
    praised: Float[Tensor, " n"]


def lessons(public: Path, most: int) -> Lessons:
    """Sentences of film reviews, at random.

    Args:
        public: the folder of the package.
        most: how many sentences.
    """
    pairs = [
        (sentence, 1.0 if review.positive else -1.0)
        for review in reviews(public)
        for sentence in review.sentences
        if len(sentence.split()) <= LONGEST
    ]
    chosen = random.Random(0).sample(pairs, most)
    ids = torch.from_numpy(FolderTokens("minilm", TOKENS).encode([sentence for sentence, _ in chosen]))
    order = ids.ne(0).sum(1).argsort(stable=True)
    return Lessons(ids[order], torch.tensor([praised for _, praised in chosen])[order])


def targets(z: Float[Tensor, " n"], praised: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The probabilities that sentences are positive, by the private model and their reviews."""
    agree = int(((z > 0) == (praised > 0)).sum())
    odds = (agree + 1) / (len(z) - agree + 1)  # one more of either kind: no certainty from few sentences
    return torch.sigmoid(z + praised * math.log(odds))


def teach(model: Classifier, embeddings: nn.Module, given: Lessons) -> None:
    """Train all weights on what the model itself and the reviews say of public sentences, for one epoch.

    Args:
        model: all layers and the head, as private training has left them.
        embeddings: what lies below them and stays as it is.
        given: the sentences.
    """
    model.requires_grad_(False)
    aims = targets(_log_odds(model, embeddings, given.ids), given.praised)
    cores.merge(model.layers)
    model.requires_grad_(True)
    batches = _shuffled(len(aims))
    optimizer = torch.optim.AdamW(model.groups(RATE), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [RATE, HEAD_RATE], total_steps=len(batches) + 1, pct_start=0.1, anneal_strategy="linear"
    )
    for few in batches:
        optimizer.zero_grad()
        z = _log_odds(model, embeddings, given.ids[few])
        F.binary_cross_entropy_with_logits(z, aims[few]).backward()
        optimizer.step()
        schedule.step()


def _log_odds(model: Classifier, embeddings: nn.Module, ids: Int64[Tensor, "n t"]) -> Float[Tensor, " n"]:
    found = []
    for few in ids.split(BATCH):
        few = few[:, : int(few.ne(0).sum(1).max())]
        with torch.no_grad():
            hidden = embeddings(few)
        logits = model(hidden, few.ne(0))
        found.append(logits[:, 1] - logits[:, 0])
    return torch.cat(found)


def _shuffled(sentences: int) -> list[Int64[Tensor, " b"]]:
    """Of each 1,024 in a random order those of like length come together, to save padding."""
    found = []
    for some in torch.randperm(sentences).split(32 * BATCH):
        few = some.sort().values.split(BATCH)
        found += [few[place] for place in torch.randperm(len(few)).tolist()]
    return found
