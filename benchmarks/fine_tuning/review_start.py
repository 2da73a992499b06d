"""A warm encoder tuned on, without privacy, on public film reviews: a second, nearer place to begin at.

A review is rated as a whole, and SST-2 is of sentences. So a review is a bag of some of its sentences, each read alone:
the logit of the bag is the sum of theirs, as if each were evidence of its own, and what is learned is what one sentence
says. Sentences that people have rated one by one (`warm_start`) come along, lest those be forgotten. Public reviews are
held out to watch it on; no record of SST-2 is looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from benchmarks.fine_tuning import warm_start
from benchmarks.fine_tuning.film_reviews import Review, reviews
from benchmarks.fine_tuning.public_text import Rated
from quietgrad.integrations.pretrained import model_folder
from quietgrad.integrations.text_folder import FolderTokens

REVIEWS, HELD_OUT = 6_000, 500
SENTENCES = 4
"""Of a review, at random."""
BAGS, RATED = 12, 12
"""Of a step."""
ROWS = 16
"""Sentences of like length that are passed together."""
RATE = 4e-5
WATCHED = 125
"""Steps between two looks at public text that is held out."""


class Step(NamedTuple):
    """Sentences, the bag each is in, and what the bags are. A sentence rated alone is a bag of its own."""

    texts: list[str]
    bags: Int64[Tensor, " n"]
    positive: Float[Tensor, " b"]


def steps(some: list[Review], rated: list[Rated], chance: random.Random) -> Iterator[Step]:
    """An epoch of the reviews."""
    for start in range(0, len(some), BAGS):
        bags = [_drawn(review, chance) for review in some[start : start + BAGS]]
        extra = chance.sample(rated, RATED)
        texts = [*(bag.sentences for bag in bags), *([text] for text, _ in extra)]
        ratings = torch.tensor([rating for _, rating in extra])
        yield Step(
            [sentence for sentences in texts for sentence in sentences],
            torch.tensor([place for place, sentences in enumerate(texts) for _ in sentences]),
            torch.cat([torch.tensor([float(bag.positive) for bag in bags]), warm_start.likely(ratings)]),
        )


def _drawn(review: Review, chance: random.Random) -> Review:
    return Review(chance.sample(review.sentences, min(SENTENCES, len(review.sentences))), review.positive)


def warm(public: Path, begin: str, target: Path) -> dict[str, Any]:
    """Tune on an encoder and write it into a folder in Hugging Face's format.

    Args:
        public: the folder of both packages.
        begin: the encoder.
        target: the folder.
    """
    import transformers

    torch.manual_seed(0)
    chance = random.Random(0)
    some = [review for review in reviews(public) if review.sentences]
    chance.shuffle(some)
    held_out, some = some[:HELD_OUT], some[HELD_OUT : HELD_OUT + REVIEWS]
    rated, rated_held_out = warm_start.examples(public)
    words = FolderTokens("minilm", warm_start.TOKENS)
    model = warm_start.Warmed(
        transformers.AutoModel.from_pretrained(model_folder(begin), add_pooling_layer=False)
    ).train()
    optimizer, schedule = warm_start.steps_of(model, RATE, -(-len(some) // BAGS))
    curve = []
    for number, step in enumerate(steps(some, rated, chance), start=1):
        optimizer.zero_grad()
        logits = bag_logits(_logits(model, words, step.texts), step)
        F.binary_cross_entropy_with_logits(logits, step.positive).backward()
        optimizer.step()
        schedule.step()
        if number % WATCHED == 0:
            curve.append(_watched(model, words, held_out, rated_held_out))
            print(number, curve[-1], flush=True)
    warm_start.save(model, target, "warm, film reviews")
    found = _watched(model, words, held_out, rated_held_out)
    return {"held_out_reviews": found[0], "held_out_public": found[1], "held_out_curve": curve}


def _logits(model: warm_start.Warmed, words: FolderTokens, texts: list[str]) -> Float[Tensor, " n"]:
    ids = torch.from_numpy(words.encode(texts))
    lengths = ids.ne(0).sum(1)
    order = lengths.argsort()
    parts = [model(ids[few, : int(lengths[few].max())]) for few in order.split(ROWS)]
    found: Tensor = torch.cat(parts)[order.argsort()]
    return found


def bag_logits(logits: Float[Tensor, " n"], step: Step) -> Float[Tensor, " b"]:
    """The sums over each bag."""
    return torch.zeros_like(step.positive).index_add(0, step.bags, logits)


@torch.no_grad()
def _watched(
    model: warm_start.Warmed, words: FolderTokens, held_out: list[Review], rated: list[Rated]
) -> tuple[float, float]:
    """Of public reviews and of sentences rated alone, in percent."""
    model.eval()
    of_reviews = _right(model, words, _beginnings(held_out))
    texts = [text for text, _ in rated]
    alone = torch.tensor([float(rating > 0) for _, rating in rated])
    of_sentences = _right(model, words, Step(texts, torch.arange(len(texts)), alone))
    model.train()
    return of_reviews, of_sentences


def _beginnings(some: list[Review]) -> Step:
    """The first sentences of every review."""
    bags = [review.sentences[:SENTENCES] for review in some]
    return Step(
        [sentence for bag in bags for sentence in bag],
        torch.tensor([place for place, bag in enumerate(bags) for _ in bag]),
        torch.tensor([float(review.positive) for review in some]),
    )


def _right(model: warm_start.Warmed, words: FolderTokens, step: Step) -> float:
    found = bag_logits(_logits(model, words, step.texts), step)
    return round(100 * float(((found > 0) == (step.positive > 0.5)).double().mean()), 2)
