"""PrivateClassifier keeps scikit-learn's conventions and its budget."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy import ndarray

pytest.importorskip("sklearn")

from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import DataConversionWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import quietgrad as qg
from quietgrad.sklearn import PrivacyWarning, PrivateClassifier, PrivateRegressor

pytestmark = pytest.mark.filterwarnings("ignore::quietgrad.sklearn.PrivacyWarning")


def clouds(records: int = 1500) -> tuple[ndarray, ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=records)
    return rng.normal(size=(records, 6)) + 2 * np.eye(3, 6)[labels], np.array(["a", "b", "c"])[labels]


def test_a_column_of_labels_is_taken_with_scikit_learns_warning() -> None:
    X, y = clouds()
    with pytest.warns(DataConversionWarning):
        fitted = PrivateClassifier(bounds=(-5, 5)).fit(X, y[:, None])
    assert fitted.score(X, y) > 0.8


@pytest.mark.parametrize("bounds", ["private", (-5, 5)])
def test_it_learns_within_its_budget(bounds: object) -> None:
    X, y = clouds()
    fitted = PrivateClassifier(epsilon=1.0, bounds=bounds).fit(X, y)
    assert fitted.score(X, y) > 0.8
    assert fitted.privacy_["epsilon"] == pytest.approx(1.0, abs=2e-3)
    assert fitted.privacy_["covered"]
    assert fitted.privacy_["independence"]["checked"]
    paid = {"bounds": 1} if bounds == "private" else {}
    assert fitted.privacy_["releases"].items() >= {**paid, "mean": 1, "moments": 1}.items()
    assert list(fitted.classes_) == ["a", "b", "c"]
    np.testing.assert_allclose(fitted.predict_proba(X[:5]).sum(1), 1.0)


def test_a_pickle_predicts_the_same_and_holds_no_record() -> None:
    X, y = clouds()
    fitted = PrivateClassifier(bounds=(-5, 5)).fit(X, y)
    stored = pickle.dumps(fitted)
    np.testing.assert_array_equal(pickle.loads(stored).predict(X), fitted.predict(X))
    assert len(stored) < 20_000  # the records alone are 72,000 bytes
    assert np.float64(X[0, 0]).tobytes() not in stored
    assert np.float32(X[0, 0]).tobytes() not in stored


def test_it_works_in_a_pipeline() -> None:
    X, y = clouds()
    pipeline = make_pipeline(FunctionTransformer(np.tanh), PrivateClassifier(bounds=(-1, 1)))
    assert pipeline.fit(X, y).score(X, y) > 0.7


def test_images_of_bytes_have_known_bounds_and_made_up_moments() -> None:
    digits = load_digits()
    images = np.repeat(np.repeat((digits.images * 15.9).astype(np.uint8), 2, 1), 2, 2)
    fitted = PrivateClassifier(epsilon=3.0).fit(images, digits.target)
    assert set(fitted.privacy_["releases"]) == {"mean", "training"}
    assert fitted.score(images, digits.target) > 0.7


def test_few_records_release_a_mean_and_no_moments_whatever_they_hold() -> None:
    """Law 3: what is released follows from the numbers of records and columns."""
    X, y = clouds(150)
    for records in (X, np.concatenate([1e9 * X[:1], X[1:]]), np.full_like(X, np.nan)):
        fitted = PrivateClassifier(epsilon=0.5, bounds=(-5, 5), classes=["a", "b", "c"]).fit(records, y)
        assert set(fitted.privacy_["releases"]) == {"mean", "training"}
        assert fitted.privacy_["epsilon"] == pytest.approx(0.5, abs=2e-3)


def test_public_records_cost_nothing() -> None:
    X, y = clouds()
    fitted = PrivateClassifier(bounds=(-5, 5), public=X[:100]).fit(X[100:], y[100:])
    assert set(fitted.privacy_["releases"]) == {"training"}


def test_features_fitted_on_private_records_without_paying_are_refused() -> None:
    X, y = clouds()
    for public in (X, X[:100], X[::3]):
        with pytest.raises(qg.PrivacyError, match="without paying"):
            PrivateClassifier(bounds=(-5, 5), public=public).fit(X, y)


def test_fewer_public_records_than_directions_are_said() -> None:
    X, y = clouds()
    fitted = PrivateClassifier(bounds=(-5, 5), public=X[:4]).fit(X[4:], y[4:])
    assert fitted.privacy_["directions"] == 3


def test_every_other_record_may_be_public() -> None:
    X, y = clouds()
    assert PrivateClassifier(bounds=(-5, 5), public=X[::2]).fit(X[1::2], y[1::2]).score(X, y) > 0.7


def test_missing_and_constant_columns_are_no_reason_to_refuse() -> None:
    X, y = clouds()
    X[:, 3] = 1.0
    X[::7, 0] = np.nan
    assert PrivateClassifier(bounds=(-5, 5)).fit(X, y).score(X, y) > 0.7


def test_a_class_that_does_not_occur_is_kept() -> None:
    X, y = clouds()
    fitted = PrivateClassifier(bounds=(-5, 5), classes=["a", "b", "c", "d"]).fit(X, y)
    assert fitted.predict_proba(X[:2]).shape == (2, 4)


def test_a_class_missing_from_a_draw_changes_nothing_else() -> None:
    X, y = clouds()
    few = PrivateClassifier(bounds=(-5, 5), classes=["a", "b", "c"]).fit(X[y != "c"], y[y != "c"])
    assert list(few.classes_) == ["a", "b", "c"]
    assert few.score(X[y != "c"], y[y != "c"]) > 0.8


def test_nothing_but_missing_values_is_no_reason_to_refuse() -> None:
    X, y = clouds(300)
    fitted = PrivateClassifier(bounds=(-5, 5)).fit(np.full_like(X, np.nan), y)
    assert np.isfinite(fitted.predict_proba(X)).all()


def test_no_single_record_decides_whether_it_is_refused() -> None:
    X, y = clouds()
    X[0], y[0] = np.inf, "z"
    fitted = PrivateClassifier(bounds=(-5, 5), classes=["a", "b", "c"]).fit(X, y)
    assert fitted.score(X, y) > 0.7
    assert np.isfinite(fitted.predict_proba(X)).all()


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ("guess", "bounds='private'"),
        (3, "lower, upper"),
        ((0, np.ones(4)), "6 columns"),
        ((0, np.inf), "finite"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds: object, said: str) -> None:
    X, y = clouds(50)
    with pytest.raises(ValueError, match=said):
        PrivateClassifier(bounds=bounds).fit(X, y)


def test_too_few_records_are_warned_of() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.warns(
        PrivacyWarning, match=r"60 records at ε = 0\.05 are few for 2 classes.* It takes about"
    ):
        PrivateClassifier(epsilon=0.05).fit(X[:60], y[:60])
    with pytest.warns(
        PrivacyWarning, match=r"60 records at ε = 0\.05 are few for a regression.* It takes about"
    ):
        PrivateRegressor(epsilon=0.05, target=(0, 1)).fit(X[:60], y[:60])
