"""Laws 0, 2, 3 and 4 over everything that an estimator releases: weights, groups, regression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._linear_probe.rule import gaussian_parameter
from quietgrad._mechanism import clipping
from quietgrad._release.releaser import AccountedDraw
from quietgrad.sklearn import PrivateClassifier, PrivateRegressor, classifier, regressor

pytestmark = pytest.mark.filterwarnings("ignore::quietgrad.sklearn.PrivacyWarning")

EPSILON, N, COLUMNS = 2.0, 200, 3
Trace = list[tuple[float, float, float, float]]


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """(norm of the sum, sensitivity, std of the noise, measured std) of each release; only the test sees sums."""
    found: Trace = []
    release = AccountedDraw.release

    def recorded(self: AccountedDraw, total: ClippedSum, *, std: float) -> Released:
        released = release(self, total, std=std)
        sums = np.concatenate([block.double().numpy().ravel() for block in total.blocks.values()])
        said = np.concatenate([block.double().numpy().ravel() for block in released.blocks.values()])
        noise = said * self.divisor - sums
        found.append((float(np.linalg.norm(sums)), total.sensitivity, std, float(np.sqrt(np.mean(noise**2)))))
        return released

    monkeypatch.setattr(AccountedDraw, "release", recorded)
    return found


def lonely(seed: int = 0, mine: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nobody but user 0, with some records at their bounds: all others are null records."""
    rng = np.random.default_rng(seed)
    X = np.full((N, COLUMNS), np.nan)
    X[:mine] = rng.choice([-1.0, 1.0, 1e9], size=(mine, COLUMNS))
    return X, np.arange(N) % 2, np.where(np.arange(N) < mine, 0, np.arange(N))


FITS: dict[str, Any] = {
    "record": lambda X, y, _: PrivateClassifier(EPSILON, bounds=(-1, 1), classes=[0, 1]).fit(X, y),
    "weights": lambda X, y, _: PrivateClassifier(EPSILON, bounds=(-1, 1), classes=[0, 1]).fit(
        X, y, sample_weight=np.full(N, 1e6)
    ),
    "balanced": lambda X, y, _: PrivateClassifier(
        EPSILON, bounds=(-1, 1), classes=[0, 1], class_weight="balanced"
    ).fit(X, y),
    "groups": lambda X, y, ids: PrivateClassifier(EPSILON, bounds=(-1, 1), classes=[0, 1]).fit(
        X, y, groups=ids
    ),
    "weights of groups": lambda X, y, ids: PrivateClassifier(EPSILON, bounds=(-1, 1), classes=[0, 1]).fit(
        X, y, sample_weight=np.full(N, 1e6), groups=ids
    ),
    "regression": lambda X, y, _: PrivateRegressor(EPSILON, bounds=(-1, 1), target=(0, 1)).fit(X, y),
    "regression of groups": lambda X, y, ids: PrivateRegressor(EPSILON, bounds=(-1, 1), target=(0, 1)).fit(
        X, y, groups=ids
    ),
    "regression with weights": lambda X, y, _: PrivateRegressor(EPSILON, bounds=(-1, 1), target=(0, 1)).fit(
        X, y, sample_weight=np.full(N, 1e6)
    ),
    "pooled bounds": lambda X, y, _: PrivateClassifier(EPSILON, bounds="pooled", classes=[0, 1]).fit(X, y),
}


CASES = [
    pytest.param(
        name, marks=[] if name in ("weights", "groups", "regression of groups") else pytest.mark.slow
    )
    for name in FITS
]


@pytest.mark.parametrize("name", CASES)
def test_laws_0_2_and_4_over_every_release(name: str, trace: Trace) -> None:
    """No sum moves further than stated, and all noise together is that of the budget."""
    X, y, ids = lonely(mine=8 if "groups" in name else 1)
    fitted = FITS[name](X, y, ids)
    # Law 2. Counts of classes see the labels of null records too, which all have one.
    moved = [(norm, most) for norm, most, _, _ in trace]
    if name == "balanced":
        moved = [pair for pair in moved if pair[0] < 10]
    assert all(norm <= most for norm, most in moved)
    assert any(norm > 0.2 * most for norm, most in moved)
    # Laws 0 and 4.
    assert fitted.privacy_["epsilon"] == pytest.approx(EPSILON, abs=2e-3)
    signal = math.sqrt(sum((most / std) ** 2 for _, most, std, _ in trace))
    assert signal == pytest.approx(gaussian_parameter(EPSILON, 1e-5), rel=2e-3)
    measured = np.array([found / std for _, _, std, found in trace])
    assert float(np.median(measured)) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("name", CASES)
def test_law_3_what_is_released_does_not_follow_from_what_a_record_holds(name: str, trace: Trace) -> None:
    X, y, ids = lonely()
    planned = []
    for values in (X, np.where(np.isnan(X), 0.5, np.nan)):
        trace.clear()
        fitted = FITS[name](values, y, ids)
        planned.append((fitted.privacy_["releases"], [(most, std) for _, most, std, _ in trace]))
    assert planned[0] == planned[1]


@pytest.mark.parametrize("name", ["groups", "regression of groups"])
def test_a_forgotten_group_is_caught(name: str, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: groups are counted for the plan, and their records trained on one by one."""
    module, function = (classifier, "all_at_once") if name == "groups" else (regressor, "PoissonBatches")
    make = getattr(module, function)
    calls: list[int] = []

    def forgetful(*args: Any, **options: Any) -> Any:
        calls.append(1)
        # Only the batches of the training: the plan and the statistics still speak of groups.
        if len(calls) == (3 if name == "groups" else 2):
            options = {key: value for key, value in options.items() if key not in ("unit", "most_records")}
        return make(*args, **options)

    monkeypatch.setattr(module, function, forgetful)
    X, y, ids = lonely()
    y[:8] = 1
    X[:8] = 1.0
    FITS[name](X, y, ids)
    assert any(norm > most for norm, most, _, _ in trace)


def test_weights_without_a_bound_stop_at_the_clip_and_a_missing_clip_is_caught(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two planted bugs: weights of a thousand, behind which the mechanism's clip stands; then no clip either."""
    X, y, ids = lonely(mine=1)
    monkeypatch.setattr(classifier, "record_weights", lambda *_: torch.full((N,), 1e3))
    FITS["weights"](X, y, ids)
    assert all(norm <= most for norm, most, _, _ in trace)
    trace.clear()
    monkeypatch.setattr(clipping, "clip_weights", lambda norms, _: norms * 0 + 1.0)
    FITS["weights"](X, y, ids)
    assert any(norm > most for norm, most, _, _ in trace)
