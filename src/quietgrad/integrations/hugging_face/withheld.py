"""Withhold what a Trainer would log of the drawn records.

Training losses, token counts, batch sizes and speeds are functions of the private batches that no noise covers. Logs
let through only what is public (plan, learning rate), released (norms of released gradients), or of other data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.utils import logging

RELEASED = frozenset({"epoch", "step", "learning_rate", "grad_norm", "epsilon", "delta"})
OTHER_DATA = ("eval_", "test_")

_logger = logging.get_logger(__name__)


class Withheld:
    """Let released quantities through, and say once what was kept back."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def released(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of these logs may be seen."""
        kept_back = {key for key in logs if not _may_be_seen(key)}
        if kept_back - self._reported:
            self._reported |= kept_back
            _logger.warning(
                f"Not logged: {', '.join(sorted(kept_back))}. They are computed from private records and no noise "
                "covers them; evaluate on other data instead."
            )
        return {key: value for key, value in logs.items() if key not in kept_back}


def _may_be_seen(key: str) -> bool:
    return key in RELEASED or key.startswith(OTHER_DATA)
