"""Errors that a person at the command line sees: one line, with the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabError(ValueError):
    """Something the user can put right; the message says how. The command line prints it and exits with 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for a misspelt name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""
