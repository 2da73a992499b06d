"""What the private estimators share: inputs, groups, statistics of a table, the statement of privacy."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy import ndarray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor, nn

from quietgrad._errors import PrivacyError
from quietgrad._linear_probe.ranks import NAME, even_ranks, numbers_or_nan, plan_ranks, release_ranks
from quietgrad._linear_probe.rule import PrivacyWarning, Settings, settings, warning
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad._sampling.batches import PoissonBatches
from quietgrad.accounting.calibrate import calibrate
from quietgrad.accounting.deltas import check_delta
from quietgrad.features.curves import Blocks
from quietgrad.features.table_rows import FeatureLayout
from quietgrad.sklearn.column_bounds import SHARE, known_bounds, unknown_bounds
from quietgrad.sklearn.inputs import (
    as_dense,
    check_bounds,
    read_schema,
    refuse_words,
    say_if_objects,
    scale_to_bounds,
    single,
)
from quietgrad.sklearn.notices import fits_of, join_fits, say_if_fitted_before, say_if_repeated
from quietgrad.sklearn.records import as_array, read_rows
from quietgrad.tables.records import number_users

NOT_NUMBERS = "X holds entries that are no real numbers. State columns=, or encode or drop their columns."
COMPLEX = "Complex data not supported"
SHOWS_RECORDS = {
    "could not convert string to float": NOT_NUMBERS,
    COMPLEX: NOT_NUMBERS,
    "Expected 2D array": "X has another number of dimensions. Reshape your data to (records, columns).",
}
"""How messages of scikit-learn and numpy begin that go on with records, and what to say in their place."""

MOST_WORK = 100_000
"""Tries of numpy to find a number that two arrays share."""


@dataclass
class Table:
    """Private records as an estimator reads them, and what is known of them."""

    inputs: Tensor
    layout: FeatureLayout
    bounds: tuple[Tensor, Tensor] | None
    """Of an array's columns; None if they are to be paid for, or the inputs are features already."""
    is_encoded: bool


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The common part of `PrivateClassifier` and `PrivateRegressor`."""

    epsilon: float
    delta: float
    columns: Any
    bounds: Any
    public: Any
    most_records: int
    _encoder: nn.Module
    privacy_: dict[str, Any]

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy that shares the count of fits: see `notices`."""
        clone = super().__sklearn_clone__()
        clone._fits = fits_of(self)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_fits"}

    # ---- before anything is released --------------------------------------------------------------------------

    def _begin(self, X: Any) -> None:
        """Check what does not depend on records, and say what the surroundings give away."""
        check_budget(self.epsilon, self.delta)
        refuse_private_as_public(X, self.public)
        self._schema = read_schema(self.columns)
        say_if_fitted_before(self)

    def _read_table(self, X: Any, *, one_by_one: bool) -> Table:
        """Read private records.

        Args:
            one_by_one: an odd record counts as nothing, and does not stop the fit.
        """
        if self._schema is not None:
            self._layout = FeatureLayout.of_schema(self._schema)
            values = self._encoded(X)
            self._validated(X, skip_check_array=True) if hasattr(X, "columns") else None
            return Table(values, self._layout, None, True)
        refuse_words(X)
        if one_by_one:
            say_if_objects(X)
        values = self._validated(read_rows(as_dense(X)) if one_by_one else as_dense(X))
        if one_by_one and hasattr(X, "columns"):
            self._validated(X, skip_check_array=True)  # the names of a frame's columns
        names = getattr(self, "feature_names_in_", None)
        self._layout = FeatureLayout.of_array(
            [f"x{i}" for i in range(values.shape[1])] if names is None else list(names)
        )
        known = known_bounds(self.bounds, values, values.shape[1])
        if known is not None:
            check_bounds(*known, names=list(self._layout.columns))
        return Table(single(values), self._layout, known, False)

    def _read_again(self, X: Any) -> Tensor:
        """Features of records to predict."""
        if self._schema is not None:
            return self._encoded(X)
        values = self._validated(as_dense(X), reset=False)
        return scale_to_bounds(single(values), *self._bounds)

    def _encoded(self, X: Any) -> Tensor:
        """Features of a table by its schema; a number that is missing is NaN beside its flag."""
        assert self._schema is not None
        return numbers_or_nan(self._layout, torch.from_numpy(self._schema.encode(X)))

    def _validated(self, *data: Any, **options: Any) -> Any:
        """Run scikit-learn's checks without messages that show records."""
        try:
            return validate_data(self, *data, dtype="numeric", ensure_all_finite=False, **options)
        except ValueError as error:
            shown = next((kind for kind in SHOWS_RECORDS if str(error).startswith(kind)), None)
            if shown is None:
                raise
        raise ValueError(f"{shown}: {SHOWS_RECORDS[shown]}")

    def _users(self, groups: Any, records: int) -> dict[str, Any]:
        """What batches are told of groups; nothing without them."""
        if groups is None:
            return {}
        check_consistent_length(np.zeros(records), groups)
        return {"unit": number_users(groups), "most_records": self.most_records}

    def _refuse_missing_targets(self, X: Any) -> NoReturn:
        self._validated(X, None)  # scikit-learn's own message
        raise ValueError("This estimator requires y to be passed, but the target y is None.")

    # ---- statistics of a table ----------------------------------------------------------------------------------

    def _rule(self, units: int, classes: int, *, table: bool = True) -> Settings:
        """The rule's settings, after a warning where records are few; classes are 0 where a number is predicted."""
        said = warning(records=units, classes=classes, epsilon=self.epsilon, delta=self.delta)
        if said is not None:
            warnings.warn(said, PrivacyWarning, stacklevel=4)
        return settings(
            records=units, classes=max(2, classes), epsilon=self.epsilon, delta=self.delta, table=table
        )

    def _calibrated(self, program: Program, batches: PoissonBatches) -> Statistics:
        """Begin the releases of a program that costs what the fit may spend."""
        return Statistics(calibrate(program, batches, epsilon=self.epsilon, delta=self.delta), batches)

    def _table_rows(self, table: Table, statistics: Statistics) -> Tensor:
        """Rows of the private records, after what their encoder needs was released."""
        features = self._features_of(table, statistics)
        self._encoder = self._blocks(table, statistics, features)
        return self._rows(features)

    def _table_statistics(self, table: Table, rule: Settings) -> dict[str, StatisticRelease]:
        """What is released before the features can be made: bounds, and bins for ranks."""
        found: dict[str, StatisticRelease] = {}
        if table.bounds is None and not table.is_encoded:
            statistic = unknown_bounds(len(table.layout.columns), self.bounds)
            found["bounds"] = StatisticRelease(statistic=statistic, share=SHARE)
        return found | (plan_ranks(table.layout, rule) if self.public is None else {})

    def _features_of(self, table: Table, statistics: Statistics) -> Tensor:
        """Features in [−1, 1], after bounds were paid for where nobody knows them."""
        if table.is_encoded:
            return table.inputs
        self._bounds = table.bounds if table.bounds is not None else self._paid_bounds(table, statistics)
        features = scale_to_bounds(table.inputs, *self._bounds)
        # A row of NaN adds zero to every sum; only a record without any number is one.
        features[table.inputs.isnan().all(1)] = torch.nan
        return features

    def _paid_bounds(self, table: Table, statistics: Statistics) -> tuple[Tensor, Tensor]:
        released = statistics.release("bounds", table.inputs)
        statistic = unknown_bounds(table.inputs.shape[1], self.bounds)
        lower, upper = statistic.support(released.blocks["bins"], released.std)
        return lower.float(), upper.float()

    def _blocks(self, table: Table, statistics: Statistics, features: Tensor) -> Blocks:
        """The encoder from features to rows, with ranks if the plan has them."""
        ranks = release_ranks(table.layout, statistics, features)
        return Blocks(table.layout.numbers, len(table.layout.names), ranks)

    def _width(self, table: Table, planned: dict[str, StatisticRelease]) -> int:
        """Coordinates of a row, known before anything is released."""
        ranks = even_ranks(table.layout) if NAME in planned else None
        return Blocks(table.layout.numbers, 1, ranks).width

    def _rows(self, features: Tensor) -> Tensor:
        """Encoded rows; a record of nothing but NaN stays NaN."""
        rows: Tensor = self._encoder(features)
        rows[features.isnan().all(1)] = torch.nan
        return rows

    # ---- after everything was released --------------------------------------------------------------------------

    def _finish(self, X: Any, groups: Any, statistics: Statistics, private: Privatizer, **facts: Any) -> None:
        """Write down what was released and what it cost, beside the fits before this one."""
        fits = join_fits(self, X)
        fits.add(statistics.ledger.phases)
        say_if_repeated(fits, self.delta)
        cost = private.epsilon(self.delta)
        self.privacy_ = {
            "epsilon": cost,
            "delta": self.delta,
            "covered": private.covered and statistics.covered,
            "neighbours": f"one {'record' if groups is None else 'group of records'} replaced by nothing",
            "independence": private.independence.describe(),
            "releases": {**dict.fromkeys(statistics.program.statistics, 1), "training": private.step},
            **facts,
            "fits": fits.count,
            "total_epsilon": cost if fits.count == 1 else fits.total(self.delta),
            "assumptions": self._assumptions(groups),
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def _assumptions(self, groups: Any) -> list[str]:
        assumed = [f"the number of {'records' if groups is None else 'groups'} and columns is public"]
        if self.columns is not None:
            assumed.append("columns= was stated without looking at the records")
        elif not isinstance(self.bounds, str):
            assumed.append("bounds were known without looking at the records")
        if self.public is not None:
            assumed.append("the public records are not sensitive")
        return assumed


def check_budget(epsilon: Any, delta: Any) -> None:
    """Refuse a budget that is none, before anything else is looked at."""
    if (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, int | float | np.number)
        or not 0 < epsilon < math.inf
    ):
        raise ValueError(
            f"Expected epsilon > 0 and finite, got {epsilon!r}. Pass the budget the fit may spend."
        )
    if not isinstance(delta, int | float | np.number):
        raise ValueError(f"Expected delta as a number far below 1 / records, got {delta!r}.")
    check_delta(float(delta))


def refuse_private_as_public(private: Any, public: Any) -> None:
    """Refuse `public=` that shares memory with the private records.

    Whether memory is shared does not depend on its content.
    """
    if public is not None and (public is private or share_memory(private, public)):
        raise PrivacyError(
            "public= shares memory with X: features would be fitted on private records without paying. Pass other, "
            "public records (a copy of them if they lie in one array with X), or leave public= out."
        )


def share_memory(a: Any, b: Any) -> bool:
    """Return whether two arrays have a number in common."""
    first, second = as_array(as_dense(a)), as_array(as_dense(b))
    if first is None or second is None:
        return False  # a list is copied, and reading all of it at once would stop at an odd record
    try:
        return bool(np.shares_memory(first, second, MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False  # rows and every n-th row are distinguished well below this


def flatten_images(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return flat rows, and the shape of an image if records have one."""
    dimensions = np.ndim(X) if isinstance(X, ndarray | Tensor) else 2
    if dimensions not in (3, 4):
        return X, None
    values = np.asarray(X)
    shape = (1, *values.shape[1:]) if dimensions == 3 else values.shape[1:]
    return values.reshape(len(values), -1), tuple(int(side) for side in shape)
