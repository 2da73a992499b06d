"""From a source to disjoint parts: test first, then public, then private."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy import ndarray
from torch.utils.data import TensorDataset

from quietgrad.lab.data.errors import DataError, NoPublicLabelsError
from quietgrad.lab.data.examples import Examples
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.source import Source
from quietgrad.lab.data.splitting import Pool, check_given_public, random_rows

TEST_FRACTION = 0.2  # of the records, as a proposal where a data set comes without a test part
DRAWN = "drawn from the training records"


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """What the user asked for.

    Args:
        private: number of private records; None takes all that are left.
        public: number of public examples; None takes the source's own public part, if it has one.
        test: number of test examples, 0 for none; None takes the source's own test part. Drawn from the records it has
            to be stated, since whatever is drawn is not protected.
        seed: of the draws.
        public_labels: whether the public part carries its labels.
        unit: the column that says whose a record is; None protects single records.
    """

    private: int | None = None
    public: int | None = None
    test: int | None = None
    seed: int = 0
    public_labels: bool = False
    unit: str | None = None


@dataclass(frozen=True)
class _PublicPart:
    inputs: ndarray
    labels: ndarray | None
    origin: str


def assemble(
    source: Source, choice: DataChoice, record: Mapping[str, object], stand_in: Source | None = None
) -> Parts:
    """Draw the parts at random from the seed; no row is in two of them.

    Args:
        source: the data set.
        choice: sizes and seed.
        record: what is already known for the report.
        stand_in: another data set that gives the public examples.
    """
    _check_unit(source, stand_in, choice)
    pool = Pool(source.train)
    test = _test_part(source, pool, choice)
    public = _public_part(source, stand_in, pool, choice)
    private = _subset(pool.examples, choice.private, "private", choice.seed)
    if public.labels is None and choice.public_labels:
        raise NoPublicLabelsError(
            f"public_labels=True, but {public.origin} has no labels. Leave public_labels out."
        )
    # Rows of a table are often equal by chance: there, content says nothing about a mistake.
    if public.origin != DRAWN and source.schema is None:
        check_given_public(public.inputs, test.inputs)
    users = None if choice.unit is None else private.columns[choice.unit]
    details = {
        # Where users are protected, the number of their records is private and their own number is public.
        # The key "people" is that of files of 0.2.
        **({"private": len(private)} if users is None else {"people": len(np.unique(users))}),
        "public": len(public.inputs),
        "test": len(test),
        "public_origin": public.origin,
        "public_labels": choice.public_labels,
        "seed": choice.seed,
        "split": "by row, whatever the rows hold: test drawn first, then public, then private",
        "normalisation": source.scaling(),
        "inputs": _described(source, private.inputs),
        "notes": source.notes,
    }
    parts = _parts(source, private, public, test, choice.public_labels, {**record, **details})
    parts = replace(parts, users=users, classes=source.classes, schema=source.schema, target=source.target)
    return replace(parts, record={**parts.record, "sizes": parts.sizes})


def _described(source: Source, inputs: ndarray) -> dict[str, object]:
    """What a model needs to know of its inputs and answers, to be used without these data."""
    scaling = source.normalisation
    return {
        "shape": list(source.tensor(inputs[:0]).shape[1:]),
        "type": str(source.tensor(inputs[:0]).dtype).removeprefix("torch."),
        "num_classes": source.num_classes,
        "classes": list(source.classes),
        "target": None if source.target is None else list(source.target),
        "mean": None if scaling is None else list(scaling.mean),
        "std": None if scaling is None else list(scaling.std),
    }


def _check_unit(source: Source, stand_in: Source | None, choice: DataChoice) -> None:
    if choice.unit is None:
        return
    if choice.unit not in source.train.columns:
        known = ", ".join(source.train.columns) or "none"
        raise DataError(
            f"unit = {choice.unit!r}, but the data set has no such column (it has: {known}). Store the user of each "
            "record as a column of that name in a table of texts, or as an array in a .npz file."
        )
    if stand_in is None and source.public_inputs is None and choice.public:
        raise DataError(
            "unit needs public examples that come with the data: drawn from the records they would be of the same "
            "users. Store public_x of other users, or take public = 0."
        )


def _subset(examples: Examples, size: int | None, part: str, seed: int) -> Examples:
    wanted = len(examples) if size is None else size
    if wanted == 0 and part == "test":
        return _none_of(examples)
    if wanted == len(examples) > 0:
        return examples
    return examples.take(random_rows(len(examples), wanted, part=part, seed=seed))


def _test_part(source: Source, pool: Pool, choice: DataChoice) -> Examples:
    """The source's own test examples, else a random part of its records, or of its users with all of theirs."""
    if source.test is not None:
        return _subset(source.test, choice.test, "test", choice.seed)
    units = len(pool.examples) if choice.unit is None else len(np.unique(pool.examples.columns[choice.unit]))
    if choice.test is None:
        raise DataError(
            f"data.test is not stated, and the data have no test part. What is tested on is not protected by ε: set "
            f"data.test = {max(1, round(TEST_FRACTION * units))}, a fifth, or 0 to measure nothing."
        )
    if choice.test == 0:
        return _none_of(pool.examples)
    if choice.test >= units:
        raise DataError(
            f"data.test = {choice.test} leaves none of {units} to train on. Set a smaller number."
        )
    if choice.unit is not None:
        return _test_users(pool, choice.test, choice.seed, choice.unit)
    return pool.draw(random_rows(units, choice.test, part="test", seed=choice.seed))


def _none_of(examples: Examples) -> Examples:
    return examples.take(np.zeros(0, dtype=np.int64))


def _test_users(pool: Pool, size: int, seed: int, unit: str) -> Examples:
    """Take all records of some users, who are then not private."""
    ids = pool.examples.columns[unit]
    users = np.unique(ids)
    chosen = users[random_rows(len(users), size, part="test", seed=seed)]
    return pool.draw(np.flatnonzero(np.isin(ids, chosen)))


def _public_part(source: Source, stand_in: Source | None, pool: Pool, choice: DataChoice) -> _PublicPart:
    """From the stand-in, else the source's own public inputs, else drawn from the records."""
    if stand_in is not None:
        return _from_stand_in(source, stand_in, choice)
    if source.public_inputs is not None:
        available = len(source.public_inputs)
        size = available if choice.public is None else choice.public
        rows = (
            slice(None)
            if size == available
            else random_rows(available, size, part="public", seed=choice.seed)
        )
        labels = None if source.public_labels is None else source.public_labels[rows]
        return _PublicPart(source.public_inputs[rows], labels, "the data set's own public part")
    if not choice.public:
        return _PublicPart(pool.examples.inputs[:0], pool.examples.labels[:0], "none")
    rows = random_rows(len(pool.examples), choice.public, part="public", seed=choice.seed)
    drawn = pool.draw(rows)
    return _PublicPart(drawn.inputs, drawn.labels, DRAWN)


def _from_stand_in(source: Source, stand_in: Source, choice: DataChoice) -> _PublicPart:
    theirs, ours = stand_in.train.inputs, source.train.inputs
    if (theirs.shape[1:], theirs.dtype) != (ours.shape[1:], ours.dtype):
        raise DataError(
            f"public_from has inputs of {theirs.shape[1:]} {theirs.dtype}, the data of {ours.shape[1:]} "
            f"{ours.dtype}. Take public data of the same shape."
        )
    if choice.public is None:
        raise DataError("public_from needs public=N, the number of examples to take from it.")
    if choice.public_labels:
        raise NoPublicLabelsError(
            "public_labels=True, but the labels of public_from mean something else. Leave it out."
        )
    rows = random_rows(len(theirs), choice.public, part="public", seed=choice.seed)
    return _PublicPart(theirs[rows], None, "another data set")


def _parts(
    source: Source,
    private: Examples,
    public: _PublicPart,
    test: Examples,
    public_labels: bool,
    record: Mapping[str, object],
) -> Parts:
    public_tensors = [source.tensor(public.inputs)]
    if public_labels:
        assert public.labels is not None
        public_tensors.append(torch.from_numpy(public.labels))
    private_inputs = source.tensor(private.inputs)
    return Parts(
        private=TensorDataset(private_inputs, torch.from_numpy(private.labels)),
        public=TensorDataset(*public_tensors),
        test=TensorDataset(source.tensor(test.inputs), torch.from_numpy(test.labels)),
        num_classes=source.num_classes,
        input_shape=tuple(private_inputs.shape[1:]),
        record=record,
    )
