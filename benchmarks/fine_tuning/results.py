"""Where figures are kept: one JSON file, a line for each finished run, and none is run twice."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

RESULTS = Path("docs/results/fine_tuning.json")


def once(key: str, measure: Callable[[], dict[str, Any]]) -> None:
    """Measure and write down, unless it has been done."""
    if key in known():
        return
    begun, worked = time.perf_counter(), _processor_seconds()
    found = measure()
    found["seconds"] = round(time.perf_counter() - begun, 1)
    found["processor_seconds"] = round(_processor_seconds() - worked, 1)
    with RESULTS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two runs may end at once
        RESULTS.write_text(json.dumps({**known(), key: found}, indent=1, sort_keys=True) + "\n")
    print(key, found, flush=True)


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def known() -> dict[str, Any]:
    """All figures so far."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    found: dict[str, Any] = json.loads(text or "{}")
    return found


def percent(logits: Tensor, truth: Tensor) -> float:
    """Accuracy."""
    return round(100 * float((logits.argmax(1) == truth).double().mean()), 2)
