"""Public text of other domains with people's ratings: what an encoder is warmed up on before it meets private records.

The source package of vaderSentiment 3.3.2 (MIT licence; Hutto and Gilbert, ICWSM 2014) holds sentences of Amazon's
product reviews, of tweets and of the New York Times' editorials, and a lexicon of words, each with a mean rating
between -4 and 4 of about 20 (words: 10) people. It also holds sentences of film reviews. **These are never opened**:
SST-2 is made of the same reviews, so that they would be its records, not public text.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 --dest FOLDER
"""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fine_tuning.film_reviews import reviews
from benchmarks.fine_tuning.whole_sentences import runs
from quietgrad.lab.data.files import read_bytes, require

PACKAGE = "vaderSentiment-3.3.2"
INNER = f"{PACKAGE}/additional_resources/hutto_ICWSM_2014.tar.gz"
LEXICON = f"{PACKAGE}/vaderSentiment/vader_lexicon.txt"
DOMAINS = {"reviews": "amazonReviewSnippets", "tweets": "tweets", "editorials": "nytEditorialSnippets"}
WORD = re.compile(r"[a-z]{3,}")
"""Of the lexicon; the rest are emoticons and abbreviations."""
RUN = 8
"""Words in a row that two texts hardly share by chance."""


class Rated(NamedTuple):
    """A text and how people rate it, from -4 to 4."""

    text: str
    rating: float


def rated_sentences(folder: Path) -> dict[str, list[Rated]]:
    """The sentences of each domain."""
    with _package(folder) as outer, tarfile.open(fileobj=io.BytesIO(_read(outer, INNER))) as inner:
        return {domain: _sentences(inner, file) for domain, file in DOMAINS.items()}


def rated_words(folder: Path) -> list[Rated]:
    """The lexicon's words."""
    with _package(folder) as outer:
        rows = [line.split("\t") for line in _read(outer, LEXICON).decode("utf-8").splitlines()]
    return [Rated(row[0], float(row[1])) for row in rows if WORD.fullmatch(row[0])]


def also_in(texts: list[str], others: list[str]) -> list[str]:
    """Those that are also among the others, but for case and punctuation."""
    known = {_plain(text) for text in others}
    return [text for text in texts if _plain(text) in known]


def compared(folder: Path, sst2: Path) -> dict[str, Any]:
    """How many sentences there are, which are also in SST-2, and how many of dev's have a longer piece from there.

    Args:
        folder: of the packages.
        sst2: of SST-2's train.tsv and dev.tsv.
    """
    train, dev = (_records(sst2, part) for part in ("train", "dev"))
    found = {}
    for domain, texts in _all_sentences(folder).items():
        common = also_in(texts, train + dev)
        found[domain] = {
            "sentences": len(texts),
            "in_sst2": len(common),
            "longest_in_sst2": max(common, key=lambda text: len(_plain(text)), default=""),
            f"dev_with_{RUN}_words_from_there": len(with_runs_of(dev, texts)),
        }
    return found


def with_runs_of(texts: list[str], others: list[str]) -> list[str]:
    """Those that have eight words in a row from one of the others."""
    known = {run for other in others for run in runs(_words(other), RUN)}
    return [text for text in texts if any(run in known for run in runs(_words(text), RUN))]


def _words(text: str) -> tuple[str, ...]:
    return tuple(_plain(text).split())


def _records(sst2: Path, part: str) -> list[str]:
    lines = read_bytes(require(sst2, f"{part}.tsv")).decode("utf-8").splitlines()
    return [line.rpartition("\t")[0] for line in lines[1:]]


def _all_sentences(folder: Path) -> dict[str, list[str]]:
    rated = {domain: [text for text, _ in some] for domain, some in rated_sentences(folder).items()}
    return rated | {"film reviews": [text for review in reviews(folder) for text in review.sentences]}


def _package(folder: Path) -> tarfile.TarFile:
    file = folder / f"{PACKAGE}.tar.gz"
    if not file.exists():
        command = "pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 --dest"
        raise SystemExit(f"{file} is missing. Get it with `{command} {folder}`.")
    return tarfile.open(file)


def _sentences(archive: tarfile.TarFile, file: str) -> list[Rated]:
    # Lines of number, rating, text; in the 8 bits of the time.
    text = _read(archive, f"hutto_ICWSM_2014/{file}_GroundTruth.txt").decode("latin-1")
    rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    return [Rated(row[2], float(row[1])) for row in rows]


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
