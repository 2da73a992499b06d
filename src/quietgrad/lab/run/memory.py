"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys


def peak_megabytes() -> float:
    """Return the largest resident size so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # bytes there, KiB elsewhere
