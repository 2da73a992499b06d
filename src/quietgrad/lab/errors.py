"""Errors that a user of the command line sees: one line, with the remedy."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class LabError(ValueError):
    """Something the user can put right; the message says how. The command line prints it and exits with 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for a misspelt name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""


def one_line(error: BaseException) -> str:
    """The message of an error on one line; the system's own errors get a remedy."""
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = (
            "Free some space and go on with --resume"
            if full
            else "Check the path and who may read and write it"
        )
        return f"{error.strerror}{place}. {remedy}."
    return " ".join(str(error).split())
