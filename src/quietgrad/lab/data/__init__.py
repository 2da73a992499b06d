"""Data sets as disjoint private, public and test parts."""

from __future__ import annotations

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.shipped import embedded

__all__ = ["DataError", "Parts", "embedded"]
