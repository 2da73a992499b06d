"""Tables as they are: words, gaps, weights, groups, sparse matrices, numbers to predict."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from quietgrad._linear_probe.regression import preconditioned, preconditioner
from quietgrad.sklearn import PrivateClassifier, PrivateRegressor

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::quietgrad.sklearn.PrivacyWarning")

COLUMNS = {"age": [0, 110], "ward": ["er", "icu"], "paid": [0, 1e6], "notes": "skip"}


@pytest.fixture(scope="module")
def patients() -> Any:
    """A heavy tail, gaps, a category that nobody stated, free text; risk bends with age."""
    rng, n = np.random.default_rng(0), 2500
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, n),
            "ward": rng.choice(["er", "icu", "never stated"], n, p=[0.5, 0.4, 0.1]),
            "paid": np.exp(rng.normal(6, 2, n)),
            "notes": "free text",
        }
    )
    frame.loc[rng.random(n) < 0.2, "age"] = np.nan
    frame["risk"] = (
        (frame.age.fillna(50) - 50).abs() / 50 + np.log(frame.paid) / 12 + 0.1 * rng.normal(size=n)
    )
    return frame


def test_a_frame_is_fitted_as_it_is(patients: Any) -> None:
    label = np.where(patients.risk > patients.risk.median(), "high", "low")
    model = PrivateClassifier(2.0, columns=COLUMNS, classes=["high", "low"]).fit(patients, label)
    assert set(model.privacy_["releases"]) == {"ranks", "mean", "moments", "training"}
    assert model.score(patients, label) > 0.75
    assert model.privacy_["epsilon"] <= 2.0
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(patients[::-1])[::-1], model.predict(patients))
    with pytest.raises(ValueError, match="no column 'ward'"):
        model.predict(patients.drop(columns="ward"))


def test_probabilities_are_better_than_the_prior(patients: Any) -> None:
    label = (patients.risk > patients.risk.quantile(0.8)).to_numpy().astype(int)
    model = PrivateClassifier(1.0, columns=COLUMNS, classes=[0, 1]).fit(patients, label)
    p = model.predict_proba(patients)[np.arange(len(label)), label]
    assert -np.log(p).mean() < -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))


def test_numbers_are_predicted_between_the_bounds_of_the_target(patients: Any) -> None:
    model = PrivateRegressor(2.0, columns=COLUMNS, target=(0, 3)).fit(patients, patients.risk)
    assert set(model.privacy_["releases"]) == {"ranks", "mean", "moments", "training"}
    assert model.score(patients, patients.risk) > 0.5
    assert model.predict(patients).min() >= 0
    gaps = patients.risk.where(patients.index % 5 > 0)
    assert (
        PrivateRegressor(2.0, columns=COLUMNS, target=(0, 3))
        .fit(patients, gaps)
        .score(patients, patients.risk)
        > 0.5
    )


@pytest.mark.parametrize("target", [3, (3, 0), (0, float("inf")), "public"])
def test_bounds_of_the_target_that_make_no_sense_are_refused(patients: Any, target: Any) -> None:
    with pytest.raises(ValueError, match="target="):
        PrivateRegressor(2.0, columns=COLUMNS, target=target).fit(patients, patients.risk)


def test_groups_are_protected_and_learned_from(patients: Any) -> None:
    label = (patients.risk > patients.risk.median()).to_numpy().astype(int)
    ids = np.arange(len(patients)) // 2
    model = PrivateClassifier(4.0, columns=COLUMNS, classes=[0, 1]).fit(patients, label, groups=ids)
    assert model.privacy_["neighbours"] == "one group of records replaced by nothing"
    assert model.score(patients, label) > 0.7
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        PrivateClassifier(4.0, columns=COLUMNS, classes=[0, 1]).fit(patients, label, groups=ids[1:])


def test_weights_move_the_decision(patients: Any) -> None:
    label = (patients.risk > patients.risk.quantile(0.85)).to_numpy().astype(int)
    stated: dict[str, Any] = {"columns": COLUMNS, "classes": [0, 1]}
    plain = PrivateClassifier(4.0, **stated).fit(patients, label)
    heavy = PrivateClassifier(4.0, class_weight="balanced", **stated).fit(patients, label)
    assert heavy.privacy_["releases"]["classes"] == 1
    assert heavy.predict(patients).mean() > plain.predict(patients).mean() + 0.05
    with pytest.raises(ValueError, match="one weight for each record"):
        PrivateClassifier(4.0, **stated).fit(patients, label, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="class_weight has 'maybe', which is none of the classes"):
        PrivateClassifier(4.0, class_weight={"maybe": 2.0}, **stated).fit(patients, label)


def test_sparse_records_are_those_of_the_array() -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((800, 6)) < 0.3).astype(float)
    y = X[:, 0].astype(int)
    model = PrivateClassifier(2.0, bounds=(0, 1)).fit(sparse.csr_matrix(X), y)
    np.testing.assert_array_equal(model.predict(sparse.csr_matrix(X)), model.predict(X))
    assert model.score(X, y) > 0.9


def test_columns_of_words_that_nobody_stated_are_named(patients: Any) -> None:
    with pytest.raises(ValueError, match="Column 'ward' holds"):
        PrivateClassifier(2.0).fit(patients[["age", "ward"]], patients.risk > 1)


def test_wide_tables_and_small_ones_keep_their_numbers() -> None:
    """What is released follows from N, the columns and ε alone."""
    rng = np.random.default_rng(0)
    for records, columns, curves in ((3000, 5, True), (100, 5, False), (3000, 100, False)):
        X = rng.random((records, columns))
        model = PrivateClassifier(0.5, bounds=(0, 1), classes=[0, 1]).fit(X, X[:, 0] > 0.5)
        assert ("ranks" in model.privacy_["releases"]) is curves


def test_ten_thousand_columns_are_a_matter_of_seconds() -> None:
    """Beyond 512 coordinates only a diagonal is released; nothing of the size of its matrix is made."""
    X = np.random.default_rng(0).uniform(-1, 1, (60, 10_000)).astype(np.float32)
    start = time.process_time()
    for model in (
        PrivateClassifier(1.0, bounds=(-1, 1)),
        PrivateRegressor(1.0, bounds=(-1, 1), target=(0, 1)),
    ):
        assert np.isfinite(model.fit(X, (X[:, 0] > 0).astype(int)).predict(X)).all()
    assert time.process_time() - start < 30  # 4 seconds; a matrix takes minutes


def test_a_diagonal_preconditions_as_its_matrix_does() -> None:
    squares, grad = torch.tensor([0.5, 0.2, -0.1]), torch.tensor([[1.0, 2.0, 3.0]])
    of_diagonal = preconditioned(grad, preconditioner({"diagonal": squares}, 0.05))
    # e = 0.05 in both: a matrix of 3 columns with this std/√6 has such an eigenvalue of noise.
    of_matrix = preconditioned(grad, preconditioner({"second": squares.diag()}, 0.05 / 6**0.5))
    torch.testing.assert_close(of_diagonal, of_matrix)
