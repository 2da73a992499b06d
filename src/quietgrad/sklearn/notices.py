"""What a fit says about its surroundings: earlier fits on the same records, and transformers fitted on them.

An estimator and its clones share one `Fits`, so searches, cross-validation and bagging add up what they spend. So do
estimators that are given the same object as X. No value of a record is read for it. Other processes are not seen.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from typing import Any

from quietgrad._linear_probe.rule import PrivacyWarning
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.events import Phase, coalesce


class Fits:
    """The fits of an estimator and its clones in this process."""

    def __init__(self) -> None:
        self.count = 0
        self._phases: list[Phase] = []

    def add(self, phases: tuple[Phase, ...]) -> None:
        """Remember what one more fit has released."""
        self.count += 1
        self._phases.extend(phases)

    def total(self, delta: float) -> float:
        """ε of all fits together, for a record that is in each of them."""
        return epsilon(coalesce(self._phases), delta)


_FITTED: dict[int, tuple[weakref.ref[Any], Fits]] = {}
"""Objects that were passed as X and still exist, by their address; the entry leaves with the object."""


def fits_of(estimator: Any) -> Fits:
    """Return the fits that an estimator shares with its clones."""
    found: Fits = estimator.__dict__.setdefault("_fits", Fits())
    return found


def join_fits(estimator: Any, X: Any) -> Fits:
    """Return the fits on the same object X, or the estimator's own."""
    known = _FITTED.get(id(_owner(X)))
    fits = known[1] if known is not None and known[0]() is _owner(X) else fits_of(estimator)
    estimator._fits = fits
    _remember(_owner(X), fits)
    return fits


def say_if_repeated(fits: Fits, delta: float) -> None:
    """Warn at the second fit; `privacy_["total_epsilon"]` has the sum at each later one."""
    if fits.count == 2:
        warnings.warn(
            f"This estimator, its clones or this X were fitted {fits.count} times in this process. A record that is in "
            f"all of these fits has ε = {fits.total(delta):.3g} so far, not the ε of one, and each further fit adds to "
            "it: privacy_['total_epsilon'] of the last fit has the sum.",
            PrivacyWarning,
            stacklevel=4,
        )


def say_if_fitted_before(estimator: Any) -> None:
    """Warn of transformers in a Pipeline that were fitted on the private records just before."""
    pipeline = _calling_pipeline()
    for name, step in [] if pipeline is None else pipeline.steps[:-1]:
        if step is None or isinstance(step, str) or not _learns(step):
            continue
        warnings.warn(
            f"Pipeline step {name!r} ({type(step).__name__}) was fitted on the private records, and ε of "
            f"{type(estimator).__name__} does not cover it. Leave it out and state columns= or bounds=: values are "
            "scaled by them and missing ones have a feature of their own.",
            PrivacyWarning,
            stacklevel=4,
        )


def _learns(step: Any) -> bool:
    """Whether fitting this transformer reads the records."""
    from sklearn.utils import get_tags

    try:
        return bool(get_tags(step).requires_fit)
    except Exception:  # a transformer without tags: nothing is known of it
        return True


def _calling_pipeline() -> Any:
    """Return the Pipeline whose `fit` is running, None without one."""
    from sklearn.pipeline import Pipeline

    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in ("fit", "fit_transform", "fit_predict"):
            caller = frame.f_locals.get("self")
            if isinstance(caller, Pipeline):
                return caller
        frame = frame.f_back
    return None


def _owner(X: Any) -> Any:
    """Return the object whose memory a view shows."""
    while getattr(X, "base", None) is not None and hasattr(X, "dtype"):
        X = X.base
    return X


def _remember(X: Any, fits: Fits) -> None:
    key = id(X)
    try:
        _FITTED[key] = (weakref.ref(X, lambda _: _FITTED.pop(key, None)), fits)
    except TypeError:  # a list: nothing can follow it
        return
