"""Tables as people have them: DataFrames of mixed columns, with gaps, under an index of their own. Needs pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietgrad.sklearn import PrivateClassifier

pd = pytest.importorskip("pandas")

LOWER, UPPER = [18, 0, 0], [90, 200_000, 1]


@pytest.fixture(scope="module")
def patients() -> tuple[Any, Any]:
    """Whole numbers, real ones and truth values; risk in words."""
    rng, n = np.random.default_rng(0), 2000
    columns = {
        "age": rng.integers(18, 90, n),
        "income": rng.gamma(2, 20_000, n),
        "smoker": rng.random(n) < 0.3,
    }
    table = pd.DataFrame(columns, index=np.arange(n)[::-1] + 7)
    risk = np.where(table.age + 30 * table.smoker + rng.normal(0, 5, n) > 60, "high", "low")
    return table, pd.Series(risk, index=table.index)


def fitted(table: Any, risk: Any) -> PrivateClassifier:
    return PrivateClassifier(1.0, 1e-5, bounds=(LOWER, UPPER), classes=["high", "low"]).fit(table, risk)


def test_a_frame_with_given_bounds_is_fitted_and_remembers_its_columns(patients: tuple[Any, Any]) -> None:
    classifier = fitted(*patients)
    assert list(classifier.feature_names_in_) == ["age", "income", "smoker"]
    assert classifier.score(*patients) > 0.9
    assert classifier.privacy_["epsilon"] <= 1.0
    with pytest.raises(ValueError, match="same order"):
        classifier.predict(patients[0][["income", "age", "smoker"]])


@pytest.mark.parametrize(("column", "kind"), [("age", "Int64"), ("smoker", "boolean"), ("income", "Float64")])
def test_a_gap_is_no_reason_to_refuse(patients: tuple[Any, Any], column: str, kind: str) -> None:
    """One record's gap may not decide whether there is a model."""
    table = patients[0].astype({column: kind})
    table.loc[table.index[3], column] = pd.NA
    assert fitted(table, patients[1]).score(table, patients[1]) > 0.9


def test_labels_may_be_categories_or_missing(patients: tuple[Any, Any]) -> None:
    table, risk = patients
    gap = risk.copy()
    gap.iloc[3] = None
    for labels in (risk.astype("category"), gap):
        assert fitted(table, labels).score(table, risk) > 0.9


@pytest.mark.parametrize("readable", [0, 1])
def test_columns_of_objects_are_warned_of_by_their_dtype(readable: int) -> None:
    """Whether one record is readable decides neither the warning nor whether there is a model."""
    table = pd.DataFrame({"age": range(60), "ward": pd.Series(["er"] * 60, dtype=object)})
    table.loc[: readable - 1, "ward"] = 1.0
    classifier = PrivateClassifier(8.0, 1e-3, bounds=(0, 60), classes=[0, 1])
    with pytest.warns(UserWarning, match=r"columns of dtype object\. A row with an entry that is no number"):
        classifier.fit(table, [0, 1] * 30)
    assert classifier.n_features_in_ == 2
