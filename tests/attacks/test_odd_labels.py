"""One odd record stops a fit, or stands in its error: whoever sees that a run was refused has found the record.

With `classes=` stated, a label that was NaN, a fraction or None was refused all the same, and scikit-learn's messages
about entries that are no numbers showed them (of complex ones all records).
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from quietgrad.sklearn import PrivateClassifier, PrivateRegressor

RECORDS = 60


def data() -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(0).normal(size=(RECORDS, 3))
    return values, (values[:, 0] > 0).astype(float)


def classifier(**options: Any) -> PrivateClassifier:
    return PrivateClassifier(epsilon=8.0, delta=1e-3, bounds=(-3, 3), **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("label", [np.nan, np.inf, 2.5, None, "odd", [1, 2], 7], ids=str)
def test_a_label_of_no_class_stops_nothing(label: Any) -> None:
    values, labels = data()
    odd = labels.astype(object)
    odd[3] = label
    fitted = classifier(classes=[0, 1]).fit(values, odd)
    assert fitted.classes_.tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e300, 1e39], ids=str)
def test_a_value_beyond_all_bounds_stops_nothing(value: float) -> None:
    values, labels = data()
    values[3, 1] = value
    fitted = classifier(classes=[0, 1]).fit(values, labels)
    assert np.isfinite(fitted.decision_function(values[:3])).all(), "nor does it reach the model"


@pytest.mark.parametrize("odd", ["a secret", 4242.0 + 1j], ids=str)
def test_an_error_shows_no_record(odd: Any) -> None:
    """Without `classes=` an entry that is no number stops the fit, as scikit-learn expects."""
    values, labels = data()
    values = values.astype(complex if isinstance(odd, complex) else object)
    values[0, 0] = odd
    with pytest.raises(ValueError, match="no real numbers") as caught:
        classifier().fit(values, labels)
    assert "secret" not in str(caught.value)
    assert "4242" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_error_shows_no_label() -> None:
    values, labels = data()
    odd = [*labels[1:], 4242.0 + 1j]
    with pytest.raises(ValueError, match="no real numbers") as caught:
        classifier().fit(values, odd)
    assert "4242" not in str(caught.value)
    assert caught.value.__context__ is None
    PrivateRegressor(epsilon=8.0, delta=1e-3, bounds=(-3, 3), target=(0, 1)).fit(
        values, np.array(odd)[:, None]
    )


@pytest.mark.filterwarnings("ignore::UserWarning", "error::RuntimeWarning")
def test_a_number_that_is_too_large_warns_of_nothing() -> None:
    values, labels = data()
    huge = values.astype(np.longdouble)
    labels[3], huge[4, 1] = 1e300, np.longdouble("1e400")
    for target in ("private", (0, 1)):
        PrivateRegressor(epsilon=8.0, delta=1e-3, bounds=(-3, 3), target=target).fit(huge, labels)


def test_a_wrong_number_of_dimensions_shows_no_record() -> None:
    _, labels = data()
    with pytest.raises(ValueError, match="Reshape your data") as caught:
        classifier().fit([4242.0] * RECORDS, labels)
    assert "4242" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_pickled_classifier_holds_no_record() -> None:
    values, labels = data()
    stored = pickle.dumps(classifier(classes=[0, 1]).fit(values, labels))
    for kind in (np.float32, np.float64):
        assert not any(number.tobytes() in stored for number in values.astype(kind).ravel())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0, None, "odd", [1, 2]], ids=str)
def test_an_odd_weight_stops_nothing(weight: Any) -> None:
    """A weight that was no number stopped the fit, and its error showed it."""
    values, labels = data()
    weights: list[Any] = [1.0] * RECORDS
    weights[3] = weight
    fitted = classifier(classes=[0, 1]).fit(values, labels, sample_weight=weights)
    assert np.isfinite(fitted.decision_function(values)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("nobody", [None, np.nan, ""], ids=str)
def test_a_record_of_nobody_is_a_group_of_its_own(nobody: Any) -> None:
    """It stopped the fit; a file of the lab was read without a word."""
    values, labels = data()
    ids: list[Any] = [f"user {number // 3}" for number in range(RECORDS)]
    ids[3] = ids[4] = nobody
    fitted = classifier(classes=[0, 1]).fit(values, labels, groups=ids)
    assert fitted.privacy_["neighbours"] == "one group of records replaced by nothing"
