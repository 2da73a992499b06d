"""What a fit says of its surroundings: other fits on the same records, and transformers that learned from them."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from quietgrad.sklearn import PrivacyWarning, PrivateClassifier, PrivateRegressor

FEW = "are few for"


def table(records: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(records, 3))
    return X, (X[:, 0] > 0).astype(int)


def said(fit: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [
        str(one.message) for one in caught if one.category is PrivacyWarning and FEW not in str(one.message)
    ]


def test_a_second_fit_on_the_same_records_is_said_and_its_epsilon_added() -> None:
    X, y = table()
    first = PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1))
    assert said(lambda: first.fit(X, y)) == []
    second = PrivateClassifier(1.0, bounds=(-1, 1))
    (message,) = said(lambda: second.fit(X[:], y))
    assert "fitted 2 times" in message
    assert second.privacy_["fits"] == 2
    assert first.privacy_["epsilon"] < second.privacy_["total_epsilon"] < 2.0


def test_a_search_adds_up_its_fits() -> None:
    X, y = table()
    search = GridSearchCV(
        PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1)), {"max_weight": [1.0, 2.0]}, cv=2
    )
    assert len(said(lambda: search.fit(X, y))) == 1
    found = search.best_estimator_.privacy_
    assert found["fits"] == 5
    assert found["total_epsilon"] > 2.0 > 1.0 >= found["epsilon"]


def test_bagging_and_cross_validation_add_up_their_fits() -> None:
    X, y = table(120)
    bag = BaggingRegressor(PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1)), 3, bootstrap=False)
    assert len(said(lambda: bag.fit(X, y))) == 1
    last = max(bag.estimators_, key=lambda one: one.privacy_["fits"]).privacy_
    assert last["fits"] == 3
    assert last["total_epsilon"] > 1.5 * last["epsilon"]
    estimator = PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1))
    found = cross_validate(estimator, X.copy(), y, cv=3, return_estimator=True)["estimator"]
    assert sorted(one.privacy_["fits"] for one in found) == [1, 2, 3]


def test_other_records_and_copies_from_a_file_begin_anew() -> None:
    X, y = table()
    fitted = PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1)).fit(X, y)
    other = PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1))
    assert said(lambda: other.fit(X.copy(), y)) == []
    loaded = pickle.loads(pickle.dumps(fitted))
    assert not hasattr(loaded, "_fits")
    assert clone(loaded).get_params() == fitted.get_params()


def test_a_transformer_that_learned_from_private_records_is_named() -> None:
    X, y = table()
    learned = make_pipeline(StandardScaler(), SimpleImputer(), PrivateClassifier(bounds=(-4, 4)))
    messages = said(lambda: learned.fit(X, y))
    assert [name in message for name, message in zip(("scaler", "imputer"), messages, strict=True)] == [
        True
    ] * 2
    fixed = make_pipeline(FunctionTransformer(np.tanh), PrivateClassifier(bounds=(-1, 1)))
    assert said(lambda: fixed.fit(X.copy(), y)) == []


@pytest.mark.parametrize("epsilon", [-1, 0, float("nan"), float("inf"), "one", None, True])
@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_the_budget_is_looked_at_first(kind: Any, epsilon: Any) -> None:
    with pytest.raises(ValueError, match="Expected epsilon > 0 and finite"):
        kind(epsilon=epsilon).fit("no table", None)


def test_reversed_bounds_name_their_column() -> None:
    X, y = table()
    with pytest.raises(ValueError, match=r"Column 'x1' has bounds \(5, 1\)"):
        PrivateClassifier(bounds=([0, 5, 0], [1, 1, 1])).fit(X, y)
