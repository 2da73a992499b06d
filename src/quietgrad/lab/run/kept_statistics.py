"""Statistics of a run that are kept in its folder, so that a run that is broken off after them can finish."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

import quietgrad as qg
from quietgrad.lab.run.checkpoints import LostSteps
from quietgrad.lab.run.folder import RunFolder

FILE = "statistics.pt"


class KeptStatistics(qg.Statistics):
    """Release each statistic once, keep it, and load it in a run that is resumed.

    A statistic that the ledger holds and the folder does not was lost between the two. Nobody pays for it twice: zeros
    take its place, which every moment treats as noise. The features are worse then, and the run says so.

    Args:
        program: whose statistics are released in its order.
        batches: of the training that follows.
        folder: of the run.
    """

    def __init__(self, program: qg.Program, batches: qg.PoissonBatches, folder: RunFolder) -> None:
        super().__init__(program, batches, ledger=folder.ledger)
        self._folder = folder
        before, trained = list(program.statistics), len(program.statistics) + batches.steps
        self._paid = before[: self.ledger.count] + list(program.after)[: max(0, self.ledger.count - trained)]
        self._kept: dict[str, dict[str, Any]] = folder.load(FILE) or {}
        self.lost = 0
        """Statistics that were paid for and lost."""

    def release(self, name: str, values: Tensor) -> qg.Released:
        if name in self._kept:
            return qg.Released(**self._kept[name])
        if name in self._paid:
            self.lost += 1
            warnings.warn(
                f"{self._folder.path} was broken off while it released the statistic {name!r}. ε counts it, but it is "
                "lost: the run goes without it.",
                LostSteps,
                stacklevel=2,
            )
            return self.zeros(name, values)
        released = super().release(name, values)
        self._kept[name] = {
            "blocks": dict(released.blocks),
            "std": released.std,
            "sensitivity": released.sensitivity,
        }
        self._folder.save(FILE, self._kept)
        return released
