"""Numbers as people read them."""

from __future__ import annotations

import math


def epsilon_text(epsilon: float) -> str:
    """ε rounded up, so that no text claims less than was spent."""
    return "∞" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1000 - 1e-6) / 1000:.4g}"
