"""Data sets as disjoint private, public and test parts."""

from __future__ import annotations

from quietgrad.lab.data.catalogue import DatasetListing, find_datasets
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.loading import load
from quietgrad.lab.data.parts import Parts
from quietgrad.lab.data.shipped import embedded
from quietgrad.lab.data.torch_dataset import from_datasets

__all__ = ["DataError", "DatasetListing", "Parts", "embedded", "find_datasets", "from_datasets", "load"]
