"""The one error users see when their data cannot be used."""

from __future__ import annotations


class DataError(ValueError):
    """A data file is missing, damaged or unfit; the message is one line and ends with the remedy."""


class NoPublicLabelsError(DataError):
    """Labels were asked of public data that have none."""
