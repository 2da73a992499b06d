"""A private classifier with scikit-learn's conventions, for tables and images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad._linear_probe.calibration import class_probabilities
from quietgrad._linear_probe.ranks import NAME
from quietgrad._linear_probe.recipe import (
    Source,
    all_at_once,
    fit_rescaling,
    made_up_rows,
    paid_source,
    probe_program,
    train_head,
    with_products,
    zero_head,
)
from quietgrad._linear_probe.rule import Settings, settings
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad._program.statistics import Counts
from quietgrad.features.encoders import encode
from quietgrad.features.images import image_encoder
from quietgrad.features.pipeline import Rescale
from quietgrad.sklearn.base import COMPLEX, PrivateEstimator, Table, flatten_images
from quietgrad.sklearn.column_effects import ColumnEffects
from quietgrad.sklearn.inputs import scale_to_bounds, single
from quietgrad.sklearn.record_weights import balanced_weights, class_weights, joined_weights, record_weights
from quietgrad.sklearn.records import read_labels

FEWEST_LABELS = 20
"""Records from which on labels that are all different are taken for identifiers."""

COUNTS_SHARE = 0.01
"""Part of the squared budget for the counts of the classes, where "balanced" weights ask for them."""


class PrivateClassifier(ColumnEffects, ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """An (ε, δ)-differentially private linear classifier on rescaled features.

        columns = {"age": [0, 110], "ward": ["er", "icu"], "smoker": "boolean"}
        PrivateClassifier(epsilon=1.0, delta=1e-5, columns=columns).fit(frame, frame["readmitted"])

    Formal guarantee: everything that `fit` stores is a function of releases in one ledger of total (ε, δ), neighbours
    differing in one record whose values are replaced by nothing, or, with `groups`, in all records of one group. The
    number of records (or groups), of columns and (unless `classes` is given, which is safer) the set of labels are
    taken as public.
    Checked by: tests/sklearn_estimator/test_laws.py

    Args:
        epsilon: the budget.
        delta: the probability that the guarantee fails; far below one over the number of records.
        columns: what is known of a table's columns without looking at them (`quietgrad.tables.Schema`, a mapping, or
            the path of a TOML file). X is then a DataFrame, with words and missing values as they are.
        bounds: of an array without `columns`: (lower, upper), numbers or one for each column, known without looking
            at the records; "private" spends 5% of the squared budget on finding them; "pooled" the same for columns
            of one unit, which share their bounds.
        classes: all labels there may be; a record of another label, or with an entry that is no number, contributes
            nothing. Without it such a record stops the fit.
        class_weight: a weight for each class, or "balanced", which spends 1% on the counts of the classes.
        max_weight: the largest `sample_weight`; larger ones count as this.
        most_records: with `groups`, how many records of a group a step uses at most.
        image_shape: (channels, height, width) if a row is an image; records of three or four dimensions say it
            themselves.
        public: records like X that are not sensitive, without labels: better features for free.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        columns: Any = None,
        bounds: Any = "private",
        classes: Sequence[Any] | None = None,
        class_weight: Any = None,
        max_weight: float = 1.0,
        most_records: int = 10,
        image_shape: Sequence[int] | None = None,
        public: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.columns, self.bounds = epsilon, delta, columns, bounds
        self.classes, self.class_weight, self.max_weight = classes, class_weight, max_weight
        self.most_records, self.image_shape, self.public = most_records, image_shape, public

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> PrivateClassifier:
        """Release what the features need, then train; all of it within (epsilon, delta).

        Args:
            X: records, as the class describes.
            y: their labels.
            sample_weight: of each record, from 0 to `max_weight`.
            groups: whose each record is; then ε protects all records of one group together.
        """
        self._begin(X)
        flat, shape = flatten_images(X)
        self._image_shape = tuple(self.image_shape) if self.image_shape is not None else shape
        table, labels = self._read(flat, y)
        own = record_weights(sample_weight, len(labels), self.max_weight)
        users = self._users(groups, len(labels))
        units = all_at_once(TensorDataset(labels), _ONE_STEP, **users).units
        rule = self._rule(units, len(self.classes_), table=self._image_shape is None)
        program, source = self._program(table, rule)
        batches = all_at_once(TensorDataset(table.inputs), rule, **users)
        statistics = self._calibrated(program, batches)
        rows = self._rows_of(table, statistics)
        rescale = self._rescaled(source, statistics, rows, rule)
        plain = self._image_shape is None and NAME not in statistics.program.statistics
        self._features = with_products(rescale, rule, source) if plain else rescale
        self._head = zero_head(self._features.width, len(self.classes_))
        weights = joined_weights(own, self._class_weights(statistics, labels), labels)
        data = [self._features(rows), labels, *([] if weights is None else [weights])]
        turned = all_at_once(TensorDataset(*data), rule, **users)
        private = train_head(self._head, statistics.program, turned, rule, statistics.ledger)
        self._clip, self._noise = rule.clip if groups is None else math.inf, rule.noise
        products = self._features.width - rescale.width
        facts = {"directions": rescale.width - 1, "products": products}
        self._finish(X, groups, statistics, private, **facts)
        return self

    def decision_function(self, X: Any) -> ndarray:
        """Logits; of two classes the second one's over the first one's."""
        logits = self._logits_of(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> ndarray:
        """Shares of the classes, corrected for the clip's bias and the head's noise; see `class_probabilities`."""
        found: ndarray = class_probabilities(self._logits_of(X), self._clip, self._noise).numpy()
        return found

    def predict(self, X: Any) -> ndarray:
        """The most likely class of each record."""
        best = self._logits_of(X).argmax(1).numpy()
        found: ndarray = self.classes_[best]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the handfuls of records that checks are made of
        return tags

    # ---- parts of fit ---------------------------------------------------------------------------------------

    def _read(self, flat: Any, y: Any) -> tuple[Table, Tensor]:
        """Records, and places of the labels in `classes_`."""
        if self.classes is None:
            if y is None:
                self._refuse_missing_targets(flat)
            table = self._read_table(flat, one_by_one=False)
            labels = _column_of_labels(y)
            check_consistent_length(table.inputs, labels)
            check_classification_targets(labels)
            self.classes_, targets = np.unique(labels, return_inverse=True)
            _refuse_identifiers(len(self.classes_), len(labels))
        else:
            # Whether the fit goes on may not depend on one record: an odd one counts as nothing.
            table = self._read_table(flat, one_by_one=True)
            check_consistent_length(table.inputs, y)
            self.classes_ = np.unique(np.asarray(self.classes))
            targets = np.array(read_labels(y, self.classes_.tolist()), dtype=np.int64)
        if len(self.classes_) < 2:
            raise ValueError(
                f"Expected at least 2 classes, got {len(self.classes_)}: one class only. Pass classes=[…] if more may "
                "come."
            )
        return table, torch.as_tensor(targets, dtype=torch.int64)

    def _program(self, table: Table, rule: Settings) -> tuple[Program, Source]:
        planned = self._table_statistics(table, rule)
        if self._image_shape is not None:
            planned.pop(NAME, None)
            self._encoder = image_encoder(self._image_shape)
            shape = tuple(encode(self._encoder, torch.zeros(1, *self._image_shape)).shape[1:])
        else:
            shape = (self._width(table, planned),)
        source: Source = "synthetic" if self._image_shape is not None else paid_source(math.prod(shape), rule)
        source = "public" if self.public is not None else source
        if self.class_weight == "balanced":
            counts = Counts(len(self.classes_))
            planned["classes"] = StatisticRelease(statistic=counts, share=COUNTS_SHARE)
        program = probe_program(source, shape, rule)
        return Program(training=program.training, statistics={**planned, **program.statistics}), source

    def _rows_of(self, table: Table, statistics: Statistics) -> Tensor:
        """Rows of the private records; what their encoder needs is released first."""
        if self._image_shape is None:
            return self._table_rows(table, statistics)
        return self._rows(self._features_of(table, statistics))

    def _rows(self, features: Tensor) -> Tensor:
        if self._image_shape is None:
            return super()._rows(features)
        scaled = features.nan_to_num(0.0) / 0.6  # from [−1, 1] to about unit variance
        rows = encode(self._encoder, scaled.view(-1, *self._image_shape))
        rows[features.isnan().all(1)] = torch.nan
        return rows

    def _rescaled(self, source: Source, statistics: Statistics, rows: Tensor, rule: Settings) -> Rescale:
        others: Tensor | None = None
        if source == "public":
            others = self._public_rows()
        elif source == "synthetic":
            assert self._image_shape is not None
            others = made_up_rows(self._encoder, self._image_shape)
        rescale = fit_rescaling(source, rule, statistics=statistics, rows=rows, others=others)
        assert isinstance(rescale, Rescale), "without products, which `with_products` adds for tables"
        return rescale

    def _public_rows(self) -> Tensor:
        if self._schema is not None:
            return self._rows(self._read_again(self.public))
        public = np.asarray(flatten_images(self.public)[0], dtype=np.float32)
        return self._rows(scale_to_bounds(single(public), *self._bounds))

    def _class_weights(self, statistics: Statistics, labels: Tensor) -> Tensor | None:
        if self.class_weight != "balanced":
            return class_weights(self.class_weight, self.classes_)
        return balanced_weights(statistics.release("classes", labels).blocks["counts"])

    def _logits_of(self, X: Any) -> Tensor:
        check_is_fitted(self, "privacy_")
        return self._logits(self._rows(self._read_again(flatten_images(X)[0])))

    def _logits(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self._head(self._features(rows)).double()
        return found

    def _assumptions(self, groups: Any) -> list[str]:
        labels = (
            [] if self.classes is not None else ["the set of labels is public (pass classes= to state it)"]
        )
        return super()._assumptions(groups) + labels


_ONE_STEP = settings(records=1, classes=2, epsilon=1.0, delta=1e-5)
"""Only to count users before the rule knows their number."""


def _refuse_identifiers(classes: int, records: int) -> None:
    """Refuse labels that are all different; without `classes=` their set is taken as public."""
    if classes == records >= FEWEST_LABELS:
        raise ValueError(
            f"y has {classes} different labels for {records} records. Predict a label, not an identifier; a number is "
            "predicted by PrivateRegressor."
        )


def _column_of_labels(y: Any) -> ndarray:
    from sklearn.utils.validation import column_or_1d

    try:
        found: ndarray = column_or_1d(y, warn=True)
        return found
    except ValueError as error:
        if not str(error).startswith(COMPLEX):  # which goes on with all labels
            raise
    raise ValueError(f"{COMPLEX}: y holds labels that are no real numbers. Encode them, or pass classes=[…].")
