"""Kinds of columns: what the user states of one, and the numbers that a value of it becomes.

Formal guarantee: an encoded value is a function of that value and of the statement, which the user knows without
looking at the records. How many numbers a value becomes depends on the statement alone.
Checked by: tests/tables/test_schema.py
"""

from __future__ import annotations

import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from quietgrad.tables.values import is_missing_word, read_boolean, read_day, read_number, read_word

Values = Sequence[Any] | ndarray
"""The values of one column: a list, or an array of numbers or times."""

OTHER, MISSING = "other", "missing"


class Column(ABC):
    """What is known of a column before anyone looks at its values."""

    @abstractmethod
    def encode(self, values: Values) -> Float[ndarray, "n k"]:
        """Return k numbers in [−1, 1] for each value."""

    @abstractmethod
    def feature_names(self) -> tuple[str, ...]:
        """Return the k endings of feature names; "" is the value itself."""

    @abstractmethod
    def as_plain(self) -> dict[str, Any]:
        """Return what `parse_column` reads, in types of JSON and TOML.

        Always a mapping: writers of TOML put tables last, and the order of columns has to survive them.
        """


@dataclass(frozen=True)
class Number(Column):
    """A number between stated bounds.

    Its features are the number, from −1 at `low` to 1 at `high`, and whether it is missing. A number beyond the bounds
    counts as the bound. A missing one counts as the middle.

    Args:
        low: lower bound.
        high: upper bound.
        unit: what it is measured in, such as "kg"; kept with the model.
    """

    low: float
    high: float
    unit: str = ""

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(
                f"bounds [{self.low:g}, {self.high:g}] must be finite and the first below the second"
            )

    def encode(self, values: Values) -> Float[ndarray, "n 2"]:
        return _between(self.read(values), self.low, self.high)

    def read(self, values: Values) -> Float[ndarray, " n"]:
        """Return the numbers as they are, NaN where one is missing."""
        if isinstance(values, ndarray) and values.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # what is beyond counts as missing, without a word
                numbers = values.astype(np.float64)
            return np.where(np.isfinite(numbers), numbers, np.nan)
        return np.array([read_number(value) for value in values], dtype=np.float64)

    def feature_names(self) -> tuple[str, ...]:
        return ("", MISSING)

    def as_plain(self) -> dict[str, Any]:
        unit = {"unit": self.unit} if self.unit else {}
        return {"number": [self.low, self.high], **unit}


@dataclass(frozen=True)
class Category(Column):
    """One of the stated values; its features say which one, "other" or "missing".

    Args:
        values: at least one, all different.
    """

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("the list of categories is empty: state at least one")
        if len(set(self.values)) < len(self.values):
            twice = next(value for value in self.values if self.values.count(value) > 1)
            raise ValueError(f"category {twice!r} is stated twice")

    def encode(self, values: Values) -> Float[ndarray, "n k"]:
        places = self.places(values)
        rows = np.zeros((len(places), len(self.feature_names())), dtype=np.float32)
        rows[np.arange(len(places)), places] = 1.0
        return rows

    def places(self, values: Values) -> Int64[ndarray, " n"]:
        """Return the place of each value's feature."""
        place = {name: index for index, name in enumerate(self.feature_names())}
        return np.array([place[self._name(read_word(value))] for value in _listed(values)], dtype=np.int64)

    def _name(self, word: str | None) -> str:
        if word in self.values:  # "none" is a category where it is stated, and else a missing value
            return word
        return MISSING if word is None or is_missing_word(word) else OTHER

    def feature_names(self) -> tuple[str, ...]:
        # A stated "other" is the one that takes the values that were never stated.
        return (*self.values, *(name for name in (OTHER, MISSING) if name not in self.values))

    def as_plain(self) -> dict[str, Any]:
        return {"category": list(self.values)}


@dataclass(frozen=True)
class Boolean(Column):
    """True or false, yes or no, 1 or 0; its features are 1 or −1, and "missing"."""

    def encode(self, values: Values) -> Float[ndarray, "n 2"]:
        return _between(self.read(values), 0.0, 1.0)

    def read(self, values: Values) -> Float[ndarray, " n"]:
        """Return 1 or 0, NaN where a value is missing."""
        return np.array([read_boolean(value) for value in _listed(values)], dtype=np.float64)

    def feature_names(self) -> tuple[str, ...]:
        return ("", MISSING)

    def as_plain(self) -> dict[str, Any]:
        return {"boolean": True}


@dataclass(frozen=True)
class Date(Column):
    """A day in a stated range, as a number between bounds; the time of day is left out.

    Args:
        first: the earliest day.
        last: the latest day.
        format: how texts are written, such as "%d.%m.%Y"; None for 2024-12-31. Of several the first that fits counts.
    """

    first: datetime.date
    last: datetime.date
    format: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.first < self.last:
            raise ValueError(f"dates [{self.first}, {self.last}] must be in order")

    def encode(self, values: Values) -> Float[ndarray, "n 2"]:
        return _between(self.read(values), self.first.toordinal(), self.last.toordinal())

    def read(self, values: Values) -> Float[ndarray, " n"]:
        """Return the numbers of the days, NaN where one is missing."""
        if isinstance(values, ndarray) and values.dtype.kind == "M":
            days = values.astype("datetime64[D]").astype(np.float64) + _EPOCH
            return np.where(np.isnat(values), np.nan, days)
        return np.array([read_day(value, self._patterns) for value in values], dtype=np.float64)

    @property
    def _patterns(self) -> tuple[str, ...]:
        return (
            self.format if isinstance(self.format, tuple) else () if self.format is None else (self.format,)
        )

    def feature_names(self) -> tuple[str, ...]:
        return ("", MISSING)

    def as_plain(self) -> dict[str, Any]:
        several = isinstance(self.format, tuple)
        pattern = {"format": list(self._patterns) if several else self.format} if self.format else {}
        return {"date": [self.first.isoformat(), self.last.isoformat()], **pattern}


@dataclass(frozen=True)
class Skip(Column):
    """A column that is left out: free text, or an identifier."""

    def encode(self, values: Values) -> Float[ndarray, "n 0"]:
        return np.zeros((len(values), 0), dtype=np.float32)

    def feature_names(self) -> tuple[str, ...]:
        return ()

    def as_plain(self) -> dict[str, Any]:
        return {"skip": True}


_EPOCH = datetime.date(1970, 1, 1).toordinal()
SHAPES = (
    "[lowest, highest] for a number, [first date, last date], a list of categories, "
    '"boolean", or "skip" to leave the column out'
)
UNSTATED = "?"
"""What `quietgrad columns` writes where the user has to state something."""


def parse_column(name: str, stated: Any) -> Column:
    """Read what is stated of a column.

    Two numbers are bounds, two dates a range of days, and any other list holds categories. A mapping says which:
    `{number = [0, 250], unit = "mg/dl"}`, `{category = [0, 1]}`, `{date = ["2015-01-01", "2024-12-31"], format = …}`.

    Raises:
        ValueError: with the column's name and the remedy.
    """
    if isinstance(stated, Column):
        return stated
    try:
        return _parsed(stated)
    except (ValueError, TypeError) as error:
        raise ValueError(f"columns.{name}: {error}. Give {SHAPES}.") from None


def refuse_unstated(columns: Mapping[str, Any]) -> None:
    """Name all columns of a skeleton of which nothing was stated, not only the first one."""
    names = [str(name) for name, stated in columns.items() if isinstance(stated, str) and stated == UNSTATED]
    if names:
        others = "" if len(names) == 1 else f", nor of {', '.join(names[1:])}"
        raise ValueError(f"columns.{names[0]}: nothing is stated yet{others}. Give {SHAPES}.")


def _parsed(stated: Any) -> Column:
    if stated in ("boolean", {"boolean": True}):
        return Boolean()
    if stated in ("skip", {"skip": True}):
        return Skip()
    if isinstance(stated, Mapping):
        return _of_mapping(stated)
    if not isinstance(stated, list | tuple):
        raise ValueError(f"{stated!r} is no statement")
    if len(stated) == 2 and all(_is_number(bound) for bound in stated):
        return Number(float(stated[0]), float(stated[1]))
    if len(stated) == 2 and all(isinstance(bound, datetime.date) for bound in stated):
        return Date(_day(stated[0]), _day(stated[1]))
    if len(stated) == 2:
        _refuse_quoted(stated)
    return Category(tuple(_category(value) for value in stated))


def _refuse_quoted(stated: Sequence[Any]) -> None:
    """Refuse bounds in quotes, which would silently be two categories."""
    shown = ", ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in stated)
    if all(isinstance(one, str) and _is_day(one) for one in stated):
        raise ValueError(
            f"[{shown}] holds dates in quotes. Write {{ date = [{shown}] }}, or without quotes in TOML"
        )
    if any(map(_is_number, stated)) and any(isinstance(one, str) and _reads_as_number(one) for one in stated):
        raise ValueError(
            f"[{shown}] holds a number in quotes. Leave them out, or write {{ category = [{shown}] }}"
        )


def _is_day(word: str) -> bool:
    try:
        return datetime.date.fromisoformat(word).isoformat() == word
    except ValueError:
        return False


def _reads_as_number(word: str) -> bool:
    return not math.isnan(read_number(word))


def _of_mapping(stated: Mapping[str, Any]) -> Column:
    kinds = {"number": {"unit"}, "category": set[str](), "date": {"format"}}
    kind = next((kind for kind in kinds if kind in stated), None)
    if kind is None or set(stated) - {kind} - kinds[kind]:
        raise ValueError(f"{dict(stated)!r} has none of {', '.join(kinds)}, or a key that it does not take")
    values = stated[kind]
    if not isinstance(values, list | tuple):
        raise ValueError(f"{kind} = {values!r} is no list")
    if kind == "category":
        return Category(tuple(_category(value) for value in values))
    if len(values) != 2:
        raise ValueError(f"{kind} = {values!r} has {len(values)} entries for 2 bounds")
    if kind == "date":
        return Date(_day(values[0]), _day(values[1]), _formats(stated.get("format")))
    if not all(_is_number(bound) for bound in values):
        raise ValueError(f"bounds {values!r} are no numbers")
    return Number(float(values[0]), float(values[1]), str(stated.get("unit", "")))


def _formats(stated: Any) -> str | tuple[str, ...] | None:
    if stated is None or isinstance(stated, str):
        return stated
    if not (isinstance(stated, list | tuple) and stated and all(isinstance(one, str) for one in stated)):
        raise ValueError(f'format = {stated!r} is neither like "%d.%m.%Y" nor a list of such')
    return tuple(stated)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _category(value: Any) -> str:
    word = read_word(value)
    if word is None:
        raise ValueError(f"{value!r} is no category: missing values have a feature of their own")
    return word


def _day(value: Any) -> datetime.date:
    if isinstance(value, datetime.datetime):
        return value.date()
    return value if isinstance(value, datetime.date) else datetime.date.fromisoformat(value)


def _between(numbers: Float[ndarray, " n"], low: float, high: float) -> Float[ndarray, "n 2"]:
    """Map [low, high] to [−1, 1], what is missing to 0, and say what is missing."""
    missing = np.isnan(numbers)
    inside = np.clip(np.where(missing, low, numbers), low, high)
    scaled = np.where(missing, 0.0, 2 * ((inside - low) / (high - low)) - 1)
    return np.stack([scaled, missing], 1).astype(np.float32)


def _listed(values: Values) -> Sequence[Any]:
    return values.tolist() if isinstance(values, ndarray) else values
