"""A private regressor with scikit-learn's conventions, for tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy import ndarray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad._linear_probe.recipe import zero_head
from quietgrad._linear_probe.regression import (
    STEPS,
    preconditioner,
    regression_program,
    train_regression,
    with_intercept,
)
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad._program.statistics import Mean
from quietgrad._sampling.batches import PoissonBatches
from quietgrad.sklearn.base import PrivateEstimator, Table
from quietgrad.sklearn.column_bounds import SHARE, unknown_bounds
from quietgrad.sklearn.column_effects import ColumnEffects
from quietgrad.sklearn.inputs import single
from quietgrad.sklearn.record_weights import record_weights
from quietgrad.sklearn.records import read_numbers

MEAN_SHARE = 0.01
"""Part of the squared budget for the mean row, around which `partial` explains single columns."""


class PrivateRegressor(ColumnEffects, RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """An (ε, δ)-differentially private least-squares regressor.

        columns = {"rooms": [1, 12], "heating": ["gas", "oil"]}
        PrivateRegressor(epsilon=1.0, columns=columns, target=(0, 1_000_000)).fit(frame, frame["price"])

    Formal guarantee: everything that `fit` stores is a function of releases in one ledger of total (ε, δ), neighbours
    differing in one record whose values are replaced by nothing, or, with `groups`, in all records of one group. The
    number of records (or groups) and of columns is taken as public.
    Checked by: tests/sklearn_estimator/test_laws.py

    Args:
        epsilon: the budget.
        delta: the probability that the guarantee fails; far below one over the number of records.
        columns: what is known of a table's columns without looking at them, as for `PrivateClassifier`.
        bounds: of an array without `columns`, as for `PrivateClassifier`.
        target: (lowest, highest) target, known without looking at the records; targets beyond count as these.
            "private" spends 5% of the squared budget on finding them.
        max_weight: the largest `sample_weight`; larger ones count as this.
        most_records: with `groups`, how many records of a group a step uses at most.
    """

    public: Any = None

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        columns: Any = None,
        bounds: Any = "private",
        target: Any = "private",
        max_weight: float = 1.0,
        most_records: int = 10,
    ) -> None:
        self.epsilon, self.delta, self.columns, self.bounds = epsilon, delta, columns, bounds
        self.target, self.max_weight, self.most_records = target, max_weight, most_records

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> PrivateRegressor:
        """Release second moments, then take steps that they precondition; all of it within (epsilon, delta).

        Args:
            X: records, as the class describes.
            y: a number for each; a record without one contributes nothing.
            sample_weight: of each record, from 0 to `max_weight`.
            groups: whose each record is; then ε protects all records of one group together.
        """
        self._begin(X)
        stated = self._stated_target()
        table, values = self._read(X, y)
        weights = record_weights(sample_weight, len(values), self.max_weight)
        users = self._users(groups, len(values))
        batches = PoissonBatches(TensorDataset(table.inputs), rate=1.0, steps=STEPS, **users)
        program = self._program(table, batches.units, pay_for_target=stated is None)
        statistics = self._calibrated(program, batches)
        self._target = stated if stated is not None else self._paid_target(statistics, values)
        rows = self._table_rows(table, statistics)
        self._mean = statistics.release("mean", rows).blocks["mean"]
        rows, targets = _without_missing(with_intercept(rows), self._scaled(values))
        released = statistics.release("moments", rows)
        self._head = zero_head(rows.shape[1], 1)
        data = [rows, targets, *([] if weights is None else [weights])]
        turned = PoissonBatches(TensorDataset(*data), rate=1.0, steps=STEPS, **users)
        precondition = preconditioner(released.blocks, released.std)
        private = train_regression(self._head, statistics.program, turned, precondition, statistics.ledger)
        self._finish(X, groups, statistics, private)
        return self

    def predict(self, X: Any) -> ndarray:
        """A number between the bounds of the target for each record."""
        check_is_fitted(self, "privacy_")
        return self._said(self._rows(self._read_again(X)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the handfuls of records that checks are made of
        return tags

    # ---- parts of fit -----------------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any) -> tuple[Table, ndarray]:
        if y is None:
            self._refuse_missing_targets(X)
        table = self._read_table(X, one_by_one=isinstance(self.bounds, tuple | list))
        if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
            # scikit-learn's warning, of the shape alone: its errors show records.
            column_or_1d(np.zeros(tuple(y.shape)), warn=True)
        values = read_numbers(y)
        check_consistent_length(table.inputs, values)
        return table, values

    def _stated_target(self) -> tuple[float, float] | None:
        if isinstance(self.target, str) and self.target == "private":
            return None
        try:
            low, high = (float(bound) for bound in self.target)
        except (TypeError, ValueError):
            raise ValueError(
                f"Expected target=(lowest, highest) or 'private', got {self.target!r}."
            ) from None
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise ValueError(f"Expected finite bounds target=(lowest, highest), got ({low:g}, {high:g}).")
        return low, high

    def _program(self, table: Table, units: int, *, pay_for_target: bool) -> Program:
        rule = self._rule(units, 0)
        planned = self._table_statistics(table, rule)
        if pay_for_target:
            planned["target"] = StatisticRelease(statistic=unknown_bounds(1), share=SHARE)
        planned["mean"] = StatisticRelease(statistic=Mean(), share=MEAN_SHARE)
        program = regression_program(self._width(table, planned) + 1)
        return Program(training=program.training, statistics={**planned, **program.statistics})

    def _paid_target(self, statistics: Statistics, values: ndarray) -> tuple[float, float]:
        released = statistics.release("target", single(values)[:, None])
        lower, upper = unknown_bounds(1).support(released.blocks["bins"], released.std)
        return float(lower), float(upper)

    def _scaled(self, values: ndarray) -> Tensor:
        """Targets in [−1, 1], NaN where one is missing."""
        low, high = self._target
        inside = np.clip(values, low, high)
        return torch.from_numpy((2 * (inside - low) / (high - low) - 1).astype(np.float32))

    def _said(self, rows: Tensor) -> ndarray:
        with torch.no_grad():
            said = self._head(with_intercept(rows.nan_to_num(0.0)))[:, 0].double().numpy()
        low, high = self._target
        found: ndarray = np.clip(low + (said + 1) / 2 * (high - low), low, high)
        return found

    def _centre(self) -> Tensor:
        return self._mean

    def _assumptions(self, groups: Any) -> list[str]:
        known = (
            []
            if isinstance(self.target, str)
            else ["the target's bounds were known without looking at the records"]
        )
        return super()._assumptions(groups) + known


def _without_missing(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros for records without a target or without any value: they add nothing to any sum."""
    known = targets.isfinite() & rows.isfinite().all(1)
    return torch.where(known[:, None], rows, 0.0), torch.where(known, targets, 0.0)
