"""Law 9 over the estimators: an attacker who sees the fitted model stays below the claim, and catches broken fits.

All records but one user's are null records. Half of the fits hold that user's records, and the attacker looks how far
the model leans to the user's label. The claim is that of a Gaussian mechanism of parameter μ, and a lower bound on
the distance of the two halves in standard deviations refutes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from quietgrad._linear_probe.rule import gaussian_parameter
from quietgrad._mechanism import clipping
from quietgrad.audit.bounds import slope_over_noise
from quietgrad.sklearn import PrivateClassifier, PrivateRegressor, classifier, regressor

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::quietgrad.sklearn.PrivacyWarning")]

EPSILON, DELTA, N, COLUMNS, MINE = 8.0, 1e-5, 40, 3, 8
ALPHA = 1e-5
"""The probability that a sound estimator is called broken."""

CASES: dict[str, dict[str, Any]] = {
    "weights": {"sample_weight": np.full(N, 1e3)},
    "groups": {"groups": np.where(np.arange(N) < MINE, 0, np.arange(N))},
    "regression": {},
    "regression of groups": {"groups": np.where(np.arange(N) < MINE, 0, np.arange(N))},
}


def leaning(name: str, *, member: bool) -> float:
    """How far the model leans to the label of the user whose records a member's fit holds."""
    X, y = np.full((N, COLUMNS), np.nan), np.arange(N) % 2
    X[: MINE if "groups" in name else 1] = 1.0 if member else np.nan
    y[:MINE] = 1
    asked = np.ones((1, COLUMNS))
    if name.startswith("regression"):
        number = PrivateRegressor(EPSILON, DELTA, bounds=(-1, 1), target=(0, 1)).fit(X, y, **CASES[name])
        return float(number.predict(asked)[0]) - 0.5
    model = PrivateClassifier(EPSILON, DELTA, bounds=(-1, 1), classes=[0, 1]).fit(X, y, **CASES[name])
    return float(model.decision_function(asked)[0])


def shown(name: str, fits: int) -> tuple[float, float]:
    """A lower bound on μ, and its plain estimate."""
    member = np.repeat([1.0, 0.0], fits)
    scores = np.array([leaning(name, member=bool(one)) for one in member])
    inside, outside = scores[:fits], scores[fits:]
    spread = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    return slope_over_noise(member, scores, alpha=ALPHA), float((inside.mean() - outside.mean()) / spread)


@pytest.mark.parametrize("name", CASES)
def test_the_attack_stays_below_the_claim(name: str) -> None:
    bound, estimate = shown(name, 40)
    assert bound < gaussian_parameter(EPSILON, DELTA)
    assert estimate > 0, "the attack sees nothing, so it could refute nothing"


@pytest.mark.parametrize("name", ["groups", "regression of groups"])
def test_a_forgotten_group_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function = (classifier, "all_at_once") if name == "groups" else (regressor, "PoissonBatches")
    make = getattr(module, function)

    def forgetful(data: Any, *args: Any, **options: Any) -> Any:
        # Only the batches of the training, which hold labels beside rows: the plan still speaks of groups.
        known = (
            options
            if len(data.tensors) < 2
            else {k: v for k, v in options.items() if k not in ("unit", "most_records")}
        )
        return make(data, *args, **known)

    monkeypatch.setattr(module, function, forgetful)
    assert shown(name, 80)[0] > gaussian_parameter(EPSILON, DELTA)


@pytest.mark.parametrize("name", ["weights", "regression"])
def test_weights_and_residuals_without_a_clip_are_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "record_weights", lambda *_: torch.full((N,), 1e3))
    monkeypatch.setattr(clipping, "clip_weights", lambda norms, _: norms * 0 + 1.0)
    assert shown(name, 80)[0] > gaussian_parameter(EPSILON, DELTA)
