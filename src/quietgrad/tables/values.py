"""Read single values: a number, a truth value, a day or a word. Whatever is unreadable counts as missing.

Each function looks at one value alone and raises nothing, so that an odd value neither stops the reading nor changes
another record.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

MISSING_WORDS = frozenset({"", "?", "na", "n/a", "nan", "nat", "<na>", "null", "none"})
"""What files write for a value that is not there, in lower case."""

TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})
FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off"})

_MISSING_TYPES = frozenset({"NAType", "NaTType"})  # of pandas, without importing it


def read_number(value: Any) -> float:
    """Return a finite number, else NaN."""
    try:
        number = math.nan if type(value).__name__ in _MISSING_TYPES else float(value)
    except Exception:  # whatever an odd value raises is its own doing
        return math.nan
    return number if math.isfinite(number) else math.nan


def read_word(value: Any) -> str | None:
    """Return the value as a word, None if there is none.

    Whole numbers have one spelling, whatever type they come in: 1, 1.0 and "1.0" are all "1". So have truth values.
    A text like "none" stays one: `is_missing_word` says what it stands for where it is no category.
    """
    try:
        if value is None or type(value).__name__ in _MISSING_TYPES:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return _respelled(str(value).strip()) or None
    except Exception:
        return None


def is_missing_word(word: str) -> bool:
    """Return whether files write this for a value that is not there."""
    return word.lower() in MISSING_WORDS


def read_boolean(value: Any) -> float:
    """Return 1 or 0, else NaN."""
    word = read_word(value)
    if word is None:
        return math.nan
    return 1.0 if word.lower() in TRUE_WORDS else 0.0 if word.lower() in FALSE_WORDS else math.nan


def read_day(value: Any, patterns: Sequence[str] = ()) -> float:
    """Return the number of a day (1 is the first of January of the year 1), else NaN.

    Args:
        value: a date, a datetime or a text; the time of day is left out.
        patterns: how texts are written, as of `datetime.strptime`; the first that fits counts. None for 2024-12-31.
    """
    try:
        if type(value).__name__ in _MISSING_TYPES:
            return math.nan
        if isinstance(value, datetime.date):
            return float(value.toordinal())
        text = str(value).strip()
        if not patterns:
            return float(datetime.date.fromisoformat(text[:10]).toordinal())
    except Exception:
        return math.nan
    return next((day for day in (_parsed_day(text, one) for one in patterns) if day == day), math.nan)


def _parsed_day(text: str, pattern: str) -> float:
    try:
        return float(datetime.datetime.strptime(text, pattern).toordinal())
    except Exception:
        return math.nan


def _respelled(word: str) -> str:
    if word in ("True", "False", "TRUE", "FALSE"):
        return word.lower()
    head, dot, tail = word.partition(".")
    # "1.0" is "1", as whole numbers become floats where a value of the column is missing; "007" stays a code.
    return head if dot and head.lstrip("-").isdigit() and not tail.strip("0") else word
