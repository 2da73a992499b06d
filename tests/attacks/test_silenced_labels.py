"""One record silences all others: whoever sees that a fit learned nothing, or stopped, has found that record.

A list of labels with one odd entry became an array of strings, none of which was among `classes`. A ragged record, or
10**400 in it, stopped the fit; a complex label printed all labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from quietgrad.sklearn import PrivateClassifier
from quietgrad.sklearn.records import read_labels, read_rows

pytestmark = pytest.mark.filterwarnings("ignore::quietgrad.sklearn.PrivacyWarning")
RECORDS, GUESSES = 400, 30
ODD_LABELS: list[Any] = [
    "odd",
    1j,
    [1, 2],
    [1],
    None,
    10**400,
    np.nan,
    b"x",
    {},
    object(),
    np.zeros((2, 2)),
    (),
    "1" * 5000,
]
ODD_RECORDS: list[Any] = [
    "odd",
    [1.0],
    [],
    None,
    [1, "x", 3],
    [1, 10**400, 3],
    [1, 2j, 3],
    [[1], 2, 3],
    7.0,
    {},
    [1, {}, 3],
]


def data() -> tuple[list[list[float]], list[int]]:
    values = np.random.default_rng(0).normal(size=(RECORDS, 3))
    return values.tolist(), (values[:, 0] > 0).astype(int).tolist()


def classifier(epsilon: float = 1.0) -> PrivateClassifier:
    return PrivateClassifier(epsilon=epsilon, delta=1e-3, bounds=(-3, 3), classes=[0, 1])


def accuracy(X: Any, y: Any) -> float:
    return float(classifier(8.0).fit(X, y).score(*data()))


@pytest.mark.parametrize("label", ODD_LABELS, ids=lambda label: repr(label)[:12])
def test_an_odd_label_changes_nobody_elses(label: Any) -> None:
    _, labels = data()
    assert read_labels([label, *labels[1:]], [0, 1])[1:] == labels[1:]


@pytest.mark.parametrize("record", ODD_RECORDS, ids=lambda record: repr(record)[:12])
def test_an_odd_record_changes_nobody_elses(record: Any) -> None:
    values, _ = data()
    np.testing.assert_array_equal(read_rows([record, *values[1:]])[1:], np.array(values[1:]))


@pytest.mark.parametrize("odd", [ODD_LABELS, ["odd"], [1j]], ids=["all", "text", "complex"])
def test_a_fit_learns_among_odd_labels(odd: list[Any]) -> None:
    values, labels = data()
    assert accuracy(values, [*odd, *labels[len(odd) :]]) > 0.85


@pytest.mark.parametrize("odd", [ODD_RECORDS, ["odd"], [[1.0]]], ids=["all", "text", "ragged"])
def test_a_fit_learns_among_odd_records(odd: list[Any]) -> None:
    values, labels = data()
    assert accuracy([*odd, *values[len(odd) :]], labels) > 0.85


@pytest.mark.parametrize("last", ["odd", 1j, None, 2.5, "nan"], ids=str)
def test_labels_that_numpy_turned_into_another_kind_are_still_theirs(last: Any) -> None:
    """`np.array([0, 1, "odd"])` and a column of a file are strings because of one record."""
    values, labels = data()
    assert accuracy(values, np.array([*labels[:-1], last])) > 0.85


@pytest.mark.parametrize("last", ["odd", 1j, None, 10**400], ids=lambda last: str(last)[:5])
def test_values_that_numpy_turned_into_another_kind_are_still_theirs(last: Any) -> None:
    values, labels = data()
    values[-1] = [1.0, 2.0, last]
    assert accuracy(np.array(values), labels) > 0.85


def test_an_odd_record_changes_no_other_ones_value() -> None:
    """Integers that float32 cannot hold are rounded once, whatever container they arrive in."""
    whole = [[2**53 + 1, 2**25 + 1], [16777217, 3], [1, 2]]
    apart = read_rows([*whole[:2], [1, "x"]])
    for container in (np.array(whole), whole, np.array(whole, dtype=object), np.array(whole).astype(str)):
        np.testing.assert_array_equal(read_rows(container)[:2], apart[:2])
    assert np.isnan(apart[2]).all()


def test_a_record_that_cannot_be_read_adds_nothing_to_any_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows that statistics and training see of it are zeros or no numbers."""
    from quietgrad._mechanism.clipping import FlatClip
    from quietgrad._program.statistics import Mean, SecondMoments

    seen: list[float] = []
    for kind in (Mean, SecondMoments):
        original = kind.rows

        def rows(self: Any, given: Any, original: Any = original) -> Any:
            seen.append(float(FlatClip(1.0)(original(self, given[:1]), 0).blocks.popitem()[1].abs().sum()))
            return original(self, given)

        monkeypatch.setattr(kind, "rows", rows)
    values, labels = data()
    classifier(8.0).fit([["odd", 1, 2], *values[1:]], labels)
    assert seen == [0.0, 0.0]


@pytest.mark.slow
def test_guessing_whether_a_record_is_odd_is_chance_at_epsilon_one() -> None:
    """At ε = 1, δ = 1e-3 a guess is right with probability 0.73 at most: 30 of 30 were right."""
    values, labels = data()
    coins = np.random.default_rng(1).integers(2, size=GUESSES)
    right = 0
    for odd in coins:
        fitted = classifier().fit(values, ["odd" if odd else labels[0], *labels[1:]])
        right += int((fitted.score(values, labels) < 0.75) == bool(odd))
    assert right <= 27  # P(Binomial(30, 0.732) > 27) = 0.6%


@pytest.mark.parametrize("place", ["label", "value"])
@pytest.mark.parametrize(
    "odd", [4242 + 1j, "4242 secret", 4242 * 10**400, [4242, 1]], ids=lambda odd: str(odd)[:8]
)
def test_nothing_of_a_record_is_shown(place: str, odd: Any, recwarn: pytest.WarningsRecorder) -> None:
    values, labels = data()
    if place == "label":
        classifier().fit(values, [odd, *labels[1:]])
    else:
        classifier().fit([[odd, 1.0, 2.0], *values[1:]], labels)
    assert not any("4242" in str(warning.message) for warning in recwarn)
