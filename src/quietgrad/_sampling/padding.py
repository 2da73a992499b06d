"""Records of unequal length, padded to lengths that do not depend on the draw.

The length of a padded micro-batch is data if it follows its longest record: the rounding of all other rows follows it
too, even where the padding is masked. So a length is stated once and holds for every draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

PadTo = int | Sequence[int] | Literal["longest"]
Field = str | int
"""A key of a dictionary, or a place in a tuple; 0 where a record is one tensor."""

UNEQUAL = (
    "Records of unequal shape cannot be stacked. State a length, PoissonBatches(…, pad_to=128): shorter records are "
    "padded and longer ones cut. pad_to='longest' pads to the longest record of a micro-batch, which reports name."
)
UNEQUAL_BEYOND_LENGTH = (
    "Records differ in shape beyond their first dimension, which is the one that pad_to pads. Give all records the "
    "same number of features, or pass collate_fn=."
)


@dataclass(frozen=True)
class PaddingRule:
    """State to which lengths records are collated.

    Args:
        lengths: the constant length, or all length classes; empty if none was stated.
        follows_longest: whether the longest record of a micro-batch decides, by the user's choice.
    """

    lengths: tuple[int, ...] = ()
    follows_longest: bool = False

    @classmethod
    def of(cls, pad_to: PadTo | None) -> PaddingRule:
        """Read what a user stated.

        Raises:
            ValueError: it is no length.
        """
        if pad_to is None:
            return cls()
        if pad_to == "longest":
            return cls(follows_longest=True)
        several = isinstance(pad_to, Sequence) and not isinstance(pad_to, str)
        lengths: tuple[Any, ...] = tuple(pad_to) if several else (pad_to,)  # type: ignore[arg-type]
        if not lengths or not all(isinstance(length, int) and length >= 1 for length in lengths):
            raise ValueError(
                f"Expected pad_to to be a length >= 1, several of them, or 'longest', got {pad_to!r}."
            )
        return cls(tuple(sorted(set(lengths))))

    def __str__(self) -> str:
        if self.follows_longest:
            return (
                "records are padded to the longest one of their micro-batch, as stated; the rounding of other rows "
                "follows that length, which the bound on the sensitivity does not cover"
            )
        if len(self.lengths) == 1:
            return f"every record is padded or cut to the length {self.lengths[0]}"
        if self.lengths:
            classes = ", ".join(map(str, self.lengths))
            return f"each record is padded to the least of {classes} that holds it; these classes are taken as public"
        return "no length was stated"


class PadCollate:
    """Collate records of unequal length; made by `pad_collate`."""

    def __init__(
        self,
        rule: PaddingRule,
        fields: frozenset[Field] | None,
        padding: float | Mapping[Field, float],
        mask: bool,
    ) -> None:
        self.rule, self._fields, self._padding, self._mask = rule, fields, padding, mask

    def __call__(self, records: list[Any]) -> Any:
        if len(self.rule.lengths) > 1:
            raise ValueError(
                "Several lengths need PoissonBatches, which puts records of one length class into a micro-batch. Pass "
                "one length to a DataLoader's pad_collate."
            )
        length = self.rule.lengths[0] if self.rule.lengths else max(map(self._length_of, records))
        return self._collate(records, length)

    def groups(self, records: Sequence[Any]) -> list[tuple[list[Any], Callable[[Sequence[Any]], Any]]]:
        """Return the records of each length class, and what collates them."""
        largest = self.rule.lengths[-1]
        classes: dict[int, list[Any]] = {length: [] for length in self.rule.lengths}
        for record in records:
            needed = self._length_of(record)
            classes[next((length for length in classes if needed <= length), largest)].append(record)
        return [(some, self._collate_to(length)) for length, some in classes.items() if some]

    def _collate_to(self, length: int) -> Callable[[Sequence[Any]], Any]:
        return lambda records: self._collate(records, length)

    def _length_of(self, record: Any) -> int:
        lengths = [len(value) for name, value in _leaves(record) if self._is_padded(name, value)]
        return max(lengths, default=0)

    def _collate(self, records: Sequence[Any], length: int) -> Any:
        batch = self._merge(list(records), 0, length)
        if not self._mask:
            return batch
        real = [min(self._length_of(record), length) for record in records]
        mask = torch.arange(length)[None] < torch.tensor(real)[:, None]
        if isinstance(batch, dict):
            return {**batch, "mask": mask}
        return [*batch, mask] if isinstance(batch, list) else [batch, mask]

    def _merge(self, values: list[Any], name: Field, length: int) -> Any:
        """Collate one part of all records, of whatever kind it is."""
        first = values[0]
        if isinstance(first, Mapping):
            return {key: self._merge([value[key] for value in values], key, length) for key in first}
        if _is_structure(first):
            parts = list(map(list, zip(*values, strict=True)))
            return [self._merge(part, place, length) for place, part in enumerate(parts)]
        if self._is_padded(name, first):
            return self._pad(values, self._padding_of(name), length)
        return stack(values)

    def _is_padded(self, name: Field, value: Any) -> bool:
        return (self._fields is None or name in self._fields) and _is_sequence(value)

    def _padding_of(self, name: Field) -> float:
        return self._padding.get(name, 0) if isinstance(self._padding, Mapping) else self._padding

    def _pad(self, values: list[Any], padding: float, length: int) -> Tensor:
        tensors = [_as_tensor(value)[:length] for value in values]
        # An empty list has neither a type nor features of its own; the other records have.
        filled = [tensor for tensor in tensors if tensor.numel()] or tensors
        dtype, features = filled[0].dtype, filled[0].shape[1:]
        if any(tensor.shape[1:] != features for tensor in filled):
            raise ValueError(UNEQUAL_BEYOND_LENGTH)
        for tensor in filled[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
        padded = torch.full((len(tensors), length, *features), padding, dtype=dtype, device=filled[0].device)
        for row, tensor in zip(padded, tensors, strict=True):
            if tensor.numel():
                row[: len(tensor)] = tensor
        return padded


def pad_collate(
    pad_to: PadTo,
    *,
    fields: Sequence[Field] | None = None,
    padding: float | Mapping[Field, float] = 0,
    mask: bool = False,
) -> PadCollate:
    """Make a `collate_fn` that pads records of unequal length to stated lengths.

    Records are tensors, numpy arrays, lists of numbers, or tuples and dictionaries of them. Longer ones are cut: their
    first elements stay.

    Args:
        pad_to: the length of every record. With several, `PoissonBatches` puts records of the same class together, and
            the class of each record is taken as public. "longest" pads to the longest record of each micro-batch,
            which `explain()` and statements name.
        fields: keys or places of what is padded, in its first dimension; everything that has one if left out.
        padding: what is filled in, one number or one for each field.
        mask: whether the batch also gets a boolean mask of what is real: as "mask" in a dictionary, else as last entry.

    Returns:
        a function for `PoissonBatches(collate_fn=…)` or a DataLoader.

    Raises:
        ValueError: `pad_to` is no length.

    Example:
        collate = qg.pad_collate(16, padding={"labels": -100})
        batch = collate([{"input_ids": [3, 4], "labels": [3, 4]}, {"input_ids": [5], "labels": [5]}])
    """
    rule = PaddingRule.of(pad_to)
    return PadCollate(rule, None if fields is None else frozenset(fields), padding, mask)


def stack(values: list[Any]) -> Any:
    """Collate as torch does, with an error that states no sizes of records.

    Raises:
        ValueError: they have unequal shapes.
    """
    try:
        return default_collate(values)
    except RuntimeError:
        unequal = True
    # Raised outside of the handler: torch's message, which states the sizes of records, does not come along.
    assert unequal
    raise ValueError(UNEQUAL)


class CollatedRecords(NamedTuple):
    """What was stated about padding, and what collates records."""

    rule: PaddingRule
    collate_fn: Callable[[list[Any]], Any]


def collating(pad_to: PadTo | None, collate_fn: Callable[[list[Any]], Any] | None) -> CollatedRecords:
    """Combine `pad_to` and `collate_fn` of one loader.

    Raises:
        ValueError: both say how to pad.
    """
    rule = PaddingRule.of(pad_to)
    if collate_fn is None or collate_fn is default_collate:
        return CollatedRecords(rule, default_collate if pad_to is None else pad_collate(pad_to))
    own = collate_fn.rule if isinstance(collate_fn, PadCollate) else PaddingRule()
    if pad_to is None or rule == own:
        return CollatedRecords(own, collate_fn)
    if rule.lengths or own.lengths:
        raise ValueError(
            f"pad_to={pad_to!r} pads records itself, and so does a collate_fn. Leave one of them out; "
            "qg.pad_collate has more options than pad_to, and pad_to='longest' states what a collate_fn does."
        )
    return CollatedRecords(rule, collate_fn)


def _leaves(record: Any, name: Field = 0) -> list[tuple[Field, Any]]:
    """Return everything in a record that is no tuple, list of other things, or dictionary, with its innermost name."""
    if isinstance(record, Mapping):
        return [leaf for key, value in record.items() for leaf in _leaves(value, key)]
    if _is_structure(record):
        return [leaf for place, value in enumerate(record) for leaf in _leaves(value, place)]
    return [(name, record)]


def _is_structure(value: Any) -> bool:
    """Whether it holds several things, and not the elements of one sequence."""
    return isinstance(value, tuple) or (isinstance(value, list) and not _is_sequence(value))


def _is_sequence(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0 and not (isinstance(value, np.ndarray) and value.dtype.kind in "OSU")
    # Numbers, or lists of numbers: a series with several features.
    return isinstance(value, list) and all(isinstance(part, Number) or _is_row(part) for part in value)


def _is_row(part: Any) -> bool:
    return isinstance(part, list) and len(part) > 0 and all(isinstance(number, Number) for number in part)


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list) and not value:
        return torch.zeros(0, dtype=torch.int64)
    return torch.tensor(value)
