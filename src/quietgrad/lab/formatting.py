"""Format numbers for readers."""

from __future__ import annotations

import math

METHOD_TITLES = {"quiet": "private linear probe", "dp_sgd_warm": "DP-SGD from public labels"}
"""What figures and sentences call methods whose config key explains nothing."""


def method_title(method: str) -> str:
    """The method's name for readers; most config keys are names already."""
    return METHOD_TITLES.get(method, method)


def epsilon_text(epsilon: float) -> str:
    """ε rounded up, so that no text claims less than was spent."""
    return "∞" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1000 - 1e-6) / 1000:.4g}"


def duration_text(seconds: float) -> str:
    """Seconds, minutes, hours or days, two figures."""
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {name}"
    return f"{max(1, round(seconds))} seconds"


def percent_text(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where nothing was measured."""
    return "–" if share is None or math.isnan(share) else f"{share:.{digits}%}"
