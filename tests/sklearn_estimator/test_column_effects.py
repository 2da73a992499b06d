"""Which columns matter, from the fitted model alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietgrad.sklearn import PrivateClassifier, PrivateRegressor

pd = pytest.importorskip("pandas")
COLUMNS = {"age": [0, 100], "ward": ["er", "icu"], "noise": [0, 1], "flag": "boolean"}


@pytest.fixture(scope="module")
def table() -> Any:
    rng, n = np.random.default_rng(0), 3000
    return pd.DataFrame(
        {
            "age": rng.uniform(0, 100, n),
            "ward": rng.choice(["er", "icu"], n),
            "noise": rng.random(n),
            "flag": rng.random(n) < 0.5,
        }
    )


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_the_columns_that_decide_come_first_and_effects_have_their_shape(table: Any, kind: str) -> None:
    bend = np.abs(table.age - 50) / 50 + 0.4 * (table.ward == "icu")
    if kind == "classifier":
        fitted: Any = PrivateClassifier(4.0, columns=COLUMNS).fit(table, bend > 0.7)
    else:
        fitted = PrivateRegressor(4.0, columns=COLUMNS, target=(0, 1.4)).fit(table, bend)
    assert next(iter(fitted.importances())) == "age"
    assert set(list(fitted.importances())[:2]) == {"age", "ward"}
    where, said = fitted.partial("age")
    assert where[0] == 0.0
    assert where[-1] == 1.0
    assert said.shape == (len(where),)
    assert said[0] > said[len(said) // 2] < said[-1]
    names, said = fitted.partial("ward")
    assert list(names) == ["er", "icu", "other", "missing"]
    assert said[1] > said[0]


def test_an_unknown_column_is_named(table: Any) -> None:
    fitted = PrivateClassifier(4.0, columns=COLUMNS).fit(table, table.flag)
    with pytest.raises(ValueError, match=r"no column 'wards'; there are age, ward"):
        fitted.partial("wards")


def test_several_classes_have_one_effect_each(table: Any) -> None:
    thirds = np.digitize(table.age, [33, 66])
    fitted = PrivateClassifier(4.0, columns=COLUMNS, classes=[0, 1, 2]).fit(table, thirds)
    assert fitted.partial("age")[1].shape == (41, 3)
    assert next(iter(fitted.importances())) == "age"
