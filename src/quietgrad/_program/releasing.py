"""Release a program's statistics: clip, sum, ledger, noise, in the order of a training step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad._collective import default_reducer
from quietgrad._errors import PrivacyError
from quietgrad._gradients.stages import BlockwiseGrads, ClippedSum, PerSampleGrads, Released
from quietgrad._mechanism.clipping import FlatClip
from quietgrad._noise.gaussian import Gaussian
from quietgrad._noise.sources import NoiseSource, as_source
from quietgrad._privatizer.pooling import Pooling, pool
from quietgrad._program.program import Program
from quietgrad._program.statistics import Statistic
from quietgrad._release.conservation import gaussian_multiplier
from quietgrad._release.noise_states import NoiseStates
from quietgrad._release.releaser import Releaser
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad._sampling.users import Users
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import Charge, whole_plan

CHUNK = 4096
"""Records at a time: factored rows of a chunk stay small beside the records themselves."""


class Statistics:
    """Release the statistics of a calibrated program.

    Hand `ledger` to the Privatizer that trains afterwards.

    Formal guarantee: `release` may be called once for each statistic of the program, on all N records in any order of
    statistics; what it computes from a record may depend on earlier releases. The ledger contains the line of a release
    before anything of it is visible, and refuses what the plan does not contain. Where the sampler draws users, the row
    of a user is the average over that user's records, clipped once. Checked by: tests/program/test_program.py,
    tests/program/test_statistics_of_users.py

    Args:
        program: calibrated.
        sampler: of the training that follows; its N, of records or users, divides every sum.
        ledger: a file for the one ledger of the program, in memory if left out.
        noise_source: as for the Privatizer.

    Example:
        statistics = qg.Statistics(program, batches)
        mean = statistics.release("mean", features)
    """

    def __init__(
        self,
        program: Program,
        sampler: PoissonSampler | PoissonBatches,
        *,
        ledger: Path | None = None,
        noise_source: str | NoiseSource = "default",
    ) -> None:
        self.program = program
        self._sampler = sampler.sampler if isinstance(sampler, PoissonBatches) else sampler
        self._source, reducer = as_source(noise_source), default_reducer()
        description = {**program.describe(), **self._sampler.describe(), **self._source.describe()}
        self.ledger = Ledger(ledger, plan=whole_plan(program, self._sampler), description=description)
        self._released: set[str] = set()
        self._releaser = Releaser(
            ledger=self.ledger,
            states=NoiseStates(Gaussian()),
            source=self._source,
            reducer=reducer,
            divisor=float(self._sampler.units),
        )

    @property
    def covered(self) -> bool:
        """Whether ε describes the releases: false for a fixed seed."""
        return self._source.private

    def release(self, name: str, values: Tensor) -> Released:
        """Release (Σ_i clip(row_i) + noise) / N of a statistic; i are records or users.

        Args:
            values: all records, in the form that the statistic takes.

        Raises:
            ValueError: the program has no such statistic, or these are not all records.
            PrivacyError: the statistic was released already.
        """
        self._check(name, len(values))
        total = self._total(name, values, self._sampler.users)
        event = self.program.statistic_event(name, self._sampler)
        # What comes before the training has negative numbers, in a run that is resumed too.
        step = self.ledger.count - len(self.program.statistics)
        with self._releaser.record(Charge(event=event, rate=1.0), step=step) as draw:
            self._released.add(name)
            return draw.release(total, std=draw.std(total.sensitivity))

    def zeros(self, name: str, values: Tensor) -> Released:
        """Return zeros in the form of a release, for one that was paid for and lost in a crash.

        Nothing is released: of `values` only the shape of a record is read.
        """
        total = self._total(name, torch.zeros_like(values[:1]), None)
        std = gaussian_multiplier(self.program.statistic_event(name, self._sampler)) * total.sensitivity
        divisor = float(self._sampler.units)
        blocks = {
            block: torch.zeros_like(value, dtype=total.space.part(block).dtype)
            for block, value in total.blocks.items()
        }
        return Released(blocks=blocks, std=std / divisor, sensitivity=total.sensitivity / divisor)

    def _total(self, name: str, values: Tensor, users: Users | None) -> ClippedSum:
        statistic = self.program.releases[name].statistic
        clip = FlatClip(statistic.bound)
        return _sum(clip(rows, 0) for rows in _rows(statistic, values, users))

    def _check(self, name: str, records: int) -> None:
        if name not in self.program.releases:
            raise ValueError(
                f"The program has no statistic {name!r}; it has {', '.join(self.program.releases) or 'none'}. "
                "What is not planned is not paid for: add it to the program before qg.calibrate."
            )
        if name in self._released:
            raise PrivacyError(f"The statistic {name!r} was released already. The plan pays for it once.")
        if (
            name in self.program.after
            and self.ledger.count < len(self.program.statistics) + self._sampler.steps
        ):
            raise ValueError(
                f"The statistic {name!r} is planned after training, and {self.ledger.count} releases are over. Train "
                "first, or plan it among the program's statistics."
            )
        if records != self._sampler.records:
            raise ValueError(
                f"Expected the {self._sampler.records} records of the plan, got {records}. Pass all of them."
            )


def _rows(statistic: Statistic, values: Tensor, users: Users | None) -> Iterator[PerSampleGrads]:
    """Yield the rows of what is protected, in chunks: of records, or one for each user."""
    if users is None:
        yield from (statistic.rows(part) for part in values.split(CHUNK))
        return
    # Which records stand for a user needs no entropy of its own: the clip bounds the user whatever they are.
    chosen = users.contributions(range(users.count), int.from_bytes(os.urandom(8), "big"))
    for start in range(0, users.count, max(1, CHUNK // users.most_records)):
        some = chosen[start : start + max(1, CHUNK // users.most_records)]
        counts = np.array([len(rows) for rows in some], dtype=np.int64)
        grads = statistic.rows(values[torch.tensor([row for rows in some for row in rows])])
        assert isinstance(grads, BlockwiseGrads), "statistics are blocks, which can be pooled"
        yield pool(grads, Pooling(counts, 1.0 / counts))


def _sum(parts: Iterable[ClippedSum]) -> ClippedSum:
    total: ClippedSum | None = None
    for part in parts:
        total = part if total is None else total + part
    assert total is not None, "a sampler has at least one record"
    return total
