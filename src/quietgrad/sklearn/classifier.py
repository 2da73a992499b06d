"""A private classifier with scikit-learn's conventions, for tables and images."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad._errors import PrivacyError
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
from quietgrad._linear_probe.rule import PrivacyWarning, Settings, settings, warning
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._program.program import Program, StatisticRelease
from quietgrad._program.releasing import Statistics
from quietgrad.accounting.calibrate import calibrate
from quietgrad.features.encoders import Columns, encode
from quietgrad.features.images import image_encoder
from quietgrad.features.pipeline import Rescale
from quietgrad.sklearn.column_bounds import SHARE, known_bounds, unknown_bounds
from quietgrad.sklearn.records import as_array, read_labels, read_rows

NOT_NUMBERS = "X holds entries that are no real numbers. Encode or drop their columns."
SHOWS_RECORDS = {
    "could not convert string to float": NOT_NUMBERS,
    "Complex data not supported": NOT_NUMBERS,
    "Expected 2D array": "X has another number of dimensions. Reshape your data to (records, columns).",
}
"""How messages of scikit-learn and numpy begin that go on with records, and what to say in their place."""

MOST_WORK = 100_000
"""Tries of numpy to find a number that two arrays share."""


class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An (ε, δ)-differentially private linear classifier on rescaled features.

        PrivateClassifier(epsilon=1.0, delta=1e-5, bounds=(0, 100)).fit(X, y)

    Formal guarantee: everything that `fit` stores is a function of releases in one ledger of total (ε, δ), neighbours
    differing in one record whose values are replaced by nothing; the number of records, of columns and (unless
    `classes` is given, which is safer) the set of labels are taken as public.

    Args:
        epsilon: the budget.
        delta: the probability that the guarantee fails; far below one over the number of records.
        bounds: (lower, upper), numbers or one for each column, known without looking at the records; "private" spends
            5% of the squared budget on finding them.
        classes: all labels there may be; a record of another label, or with an entry that is no number, contributes
            nothing. Without it such a record stops the fit.
        image_shape: (channels, height, width) if a row is an image; records of three or four dimensions say it
            themselves.
        public: records like X that are not sensitive, without labels: better features for free.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = "private",
        classes: Sequence[Any] | None = None,
        image_shape: Sequence[int] | None = None,
        public: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds = epsilon, delta, bounds
        self.classes, self.image_shape, self.public = classes, image_shape, public

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Release what the features need, then train; all of it within (epsilon, delta)."""
        _refuse_private_as_public(X, self.public)
        values, labels = self._checked(X, y)
        rule = self._rule(len(values))
        known = known_bounds(self.bounds, values, values.shape[1])
        inputs = _single(values)
        program, source = self._program(rule, known is None, values.shape[1])
        batches = all_at_once(TensorDataset(inputs), rule)
        program = calibrate(program, batches, epsilon=self.epsilon, delta=self.delta)
        statistics = Statistics(program, batches)
        self._columns = Columns(*(_paid_bounds(statistics, inputs) if known is None else known))
        rows = self._encode(inputs)
        rescale = self._rescaled(source, statistics, rows, rule)
        self._features = with_products(rescale, rule, source) if self._image_shape is None else rescale
        self._head = zero_head(self._features.width, len(self.classes_))
        turned = all_at_once(TensorDataset(self._features(rows), labels), rule)
        private = train_head(self._head, program, turned, rule, statistics.ledger)
        self.privacy_ = self._statement(program, statistics, private, rescale.width - 1)
        return self

    def decision_function(self, X: Any) -> ndarray:
        """Logits; of two classes the second one's over the first one's."""
        check_is_fitted(self, "privacy_")
        values = self._validated(_flat(X)[0], reset=False)
        with torch.no_grad():
            rows = self._encode(_single(values))
            logits: ndarray = self._head(self._features(rows)).double().numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> ndarray:
        """Softmax of the logits."""
        logits = torch.from_numpy(np.ascontiguousarray(self.decision_function(X)))
        if logits.dim() == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], 1)
        shares: ndarray = logits.softmax(1).numpy()
        return shares

    def predict(self, X: Any) -> ndarray:
        """The most likely class of each record."""
        best = self.predict_proba(X).argmax(1)
        found: ndarray = self.classes_[best]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise
        tags.classifier_tags.poor_score = True  # on the handfuls of records that checks are made of
        tags.input_tags.allow_nan = True
        return tags

    # ---- parts of fit ---------------------------------------------------------------------------------------

    def _checked(self, X: Any, y: Any) -> tuple[ndarray, Tensor]:
        """Values, and places of the labels in `classes_`."""
        flat, shape = _flat(X)
        self._image_shape = tuple(self.image_shape) if self.image_shape is not None else shape
        self._encoder = nn.Identity() if self._image_shape is None else image_encoder(self._image_shape)
        if self.classes is None or y is None:
            values, targets = self._validated(flat, y, y_numeric=False)
            check_classification_targets(targets)
            self.classes_, targets = np.unique(targets, return_inverse=True)
        else:
            # Whether the fit goes on may not depend on one record: an odd one counts as nothing.
            values = self._validated(read_rows(flat))
            if hasattr(flat, "columns"):
                self._validated(flat, skip_check_array=True)  # the names of a frame's columns
            check_consistent_length(values, y)
            self.classes_ = np.unique(np.asarray(self.classes))
            targets = read_labels(y, self.classes_.tolist())
        if len(self.classes_) < 2:
            raise ValueError(
                f"Expected at least 2 classes, got {len(self.classes_)}: one class only. Pass classes=[…] if more may "
                "come."
            )
        return values, torch.as_tensor(targets, dtype=torch.int64)

    def _validated(self, *data: Any, **options: Any) -> Any:
        """Run scikit-learn's checks without messages that show records."""
        try:
            return validate_data(self, *data, dtype="numeric", ensure_all_finite=False, **options)
        except ValueError as error:
            shown = next((kind for kind in SHOWS_RECORDS if str(error).startswith(kind)), None)
            if shown is None:
                raise
        raise ValueError(f"{shown}: {SHOWS_RECORDS[shown]}")

    def _rule(self, records: int) -> Settings:
        facts = {"records": records, "classes": len(self.classes_)}
        said = warning(**facts, epsilon=self.epsilon, delta=self.delta)
        if said is not None:
            warnings.warn(said, PrivacyWarning, stacklevel=3)
        return settings(**facts, epsilon=self.epsilon, delta=self.delta)

    def _program(self, rule: Settings, pay_for_bounds: bool, columns: int) -> tuple[Program, Source]:
        source = self._source(rule, columns)
        program = probe_program(source, self._row_shape(columns), rule)
        if not pay_for_bounds:
            return program, source
        bounds = {"bounds": StatisticRelease(statistic=unknown_bounds(columns), share=SHARE)}
        return Program(training=program.training, statistics={**bounds, **program.statistics}), source

    def _source(self, rule: Settings, columns: int) -> Source:
        if self.public is not None:
            return "public"
        return "synthetic" if self._image_shape is not None else paid_source(columns, rule)

    def _row_shape(self, columns: int) -> tuple[int, ...]:
        """Of an encoded record."""
        if self._image_shape is None:
            return (columns,)
        return tuple(encode(self._encoder, torch.zeros(1, *self._image_shape)).shape[1:])

    def _encode(self, inputs: Tensor) -> Tensor:
        """Columns to their bounds; images go through their encoder as well."""
        rows = encode(self._columns, inputs)
        if self._image_shape is not None:
            scaled = rows * (inputs.shape[1] ** 0.5 / 0.6)  # from [−1, 1]/√d to about unit variance
            rows = encode(self._encoder, scaled.view(-1, *self._image_shape))
        # A row of NaN adds zero to every sum; only a record without any number is one.
        rows[inputs.isnan().all(1)] = torch.nan
        return rows

    def _rescaled(self, source: Source, statistics: Statistics, rows: Tensor, rule: Settings) -> Rescale:
        others: Tensor | None = None
        if source == "public":
            public = np.asarray(_flat(self.public)[0], dtype=np.float32)
            others = self._encode(torch.from_numpy(public))
        elif source == "synthetic":
            assert self._image_shape is not None
            others = made_up_rows(self._encoder, self._image_shape)
        rescale = fit_rescaling(source, rule, statistics=statistics, rows=rows, others=others)
        assert isinstance(rescale, Rescale), "without products, which `with_products` adds for tables"
        return rescale

    def _statement(
        self, program: Program, statistics: Statistics, private: Privatizer, directions: int
    ) -> dict[str, Any]:
        assumed = ["the number of records and columns is public"]
        if self.classes is None:
            assumed.append("the set of labels is public (pass classes= to state it)")
        if not isinstance(self.bounds, str):
            assumed.append("bounds were known without looking at the records")
        if self.public is not None:
            assumed.append("the public records are not sensitive")
        return {
            "epsilon": private.epsilon(self.delta),
            "delta": self.delta,
            "covered": private.covered and statistics.covered,
            "neighbours": "one record replaced by nothing",
            "independence": private.independence.describe(),
            "releases": {**dict.fromkeys(program.statistics, 1), "training": private.step},
            "directions": directions,
            "products": self._features.width - 1 - directions,
            "assumptions": assumed,
        }


def _single(values: ndarray) -> Tensor:
    """In float32, without a word about what is beyond it."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.asarray(values, dtype=np.float32))


def _flat(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return flat rows, and the shape of an image if records have one."""
    dimensions = np.ndim(X) if isinstance(X, ndarray | Tensor) else 2
    if dimensions not in (3, 4):
        return X, None
    values = np.asarray(X)
    shape = (1, *values.shape[1:]) if dimensions == 3 else values.shape[1:]
    return values.reshape(len(values), -1), tuple(int(side) for side in shape)


def _refuse_private_as_public(private: Any, public: Any) -> None:
    """Refuse `public=` that shares memory with the private records.

    Whether memory is shared does not depend on its content.
    """
    if public is private or (public is not None and _share_memory(private, public)):
        raise PrivacyError(
            "public= shares memory with X: features would be fitted on private records without paying. Pass other, "
            "public records (a copy of them if they lie in one array with X), or leave public= out."
        )


def _share_memory(a: Any, b: Any) -> bool:
    first, second = as_array(a), as_array(b)
    if first is None or second is None:
        return False  # a list is copied, and reading all of it at once would stop at an odd record
    try:
        return bool(np.shares_memory(first, second, MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False  # rows and every n-th row are distinguished well below this


def _paid_bounds(statistics: Statistics, inputs: Tensor) -> tuple[Tensor, Tensor]:
    released = statistics.release("bounds", inputs)
    lower, upper = unknown_bounds(inputs.shape[1]).support(released.blocks["bins"], released.std)
    return lower.float(), upper.float()
