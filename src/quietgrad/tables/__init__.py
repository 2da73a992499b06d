"""Tables of mixed columns as numbers, by what the user states of them: `Schema({"age": [0, 110]}).encode(frame)`."""

from quietgrad.tables.kinds import Boolean, Category, Column, Date, Number, Skip
from quietgrad.tables.labels import IGNORED, class_names, read_classes, read_targets
from quietgrad.tables.schema import Feature, Schema

__all__ = [
    "IGNORED",
    "Boolean",
    "Category",
    "Column",
    "Date",
    "Feature",
    "Number",
    "Schema",
    "Skip",
    "class_names",
    "read_classes",
    "read_targets",
]
