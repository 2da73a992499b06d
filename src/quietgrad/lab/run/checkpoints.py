"""When a run keeps its weights, and what is said of steps that were paid for and whose weights are lost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

from quietgrad.lab.errors import LabError

LONGEST = 60.0
"""Seconds between two checkpoints, at most."""

WORTH = 50.0
"""Seconds of training that a second of saving is worth: what a kill can take costs about 2% of the time to keep."""


class LostSteps(UserWarning):
    """Steps are in the ledger, and so in ε, that no checkpoint holds."""


class Checkpoints:
    """Saves after the first step, every `every` steps, and at least every minute; sooner where saving is quick.

    Args:
        save: keeps everything that the run needs to go on.
        every: steps between two checkpoints.
    """

    def __init__(self, save: Callable[[], None], every: int) -> None:
        self._save, self._every = save, every
        self._next = 0.0

    def stepped(self, step: int) -> None:
        """Save if it is time."""
        if step % self._every == 0 or time.monotonic() >= self._next:
            self.save()

    def save(self) -> None:
        """Save whatever the time."""
        began = time.monotonic()
        self._save()
        ended = time.monotonic()
        self._next = ended + min(LONGEST, WORTH * (ended - began))


def tell_lost(lost: int, left: int, path: Path) -> None:
    """Warn that a resumed run has fewer steps left than its weights need.

    Args:
        lost: releases that the ledger holds and the checkpoint does not.
        left: releases that the plan still allows.
    """
    if lost:
        warnings.warn(
            f"{path} was broken off: {lost} releases of its plan are spent without a checkpoint, and their updates are "
            f"lost. ε counts them. {left} releases are left.",
            LostSteps,
            stacklevel=3,
        )


def lost_text(lost: int, planned: int, what: str) -> str:
    """Say at the end of a run what was lost on the way; nothing if nothing was."""
    return (
        f" {lost} of {planned} {what} were lost in crashes: ε counts them, the weights lack them."
        if lost
        else ""
    )


def check_any_kept(updates: int, planned: int, path: Path) -> None:
    """Refuse to finish a run whose whole plan is spent and whose weights are still the first ones.

    Raises:
        LabError: no update is left.
    """
    if not updates:
        raise LabError(
            f"{path} was broken off before its first checkpoint, and all {planned} releases of its plan are spent: its "
            "weights are still the first ones. Start a new run with another --out; what this one cost stays spent, so "
            "add its ε."
        )
