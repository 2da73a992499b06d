"""Release a program's statistics: clip, sum, ledger, noise, in the order of a training step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from quietgrad._collective import default_reducer
from quietgrad._errors import PrivacyError
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._mechanism.clipping import FlatClip
from quietgrad._noise.gaussian import Gaussian
from quietgrad._noise.sources import NoiseSource, as_source
from quietgrad._program.program import Program
from quietgrad._release.conservation import gaussian_multiplier
from quietgrad._release.noise_states import NoiseStates
from quietgrad._release.releaser import Releaser
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import Charge, whole_plan

CHUNK = 4096
"""Records at a time: factored rows of a chunk stay small beside the records themselves."""


class Statistics:
    """Release the statistics of a calibrated program.

    Hand `ledger` to the Privatizer that trains afterwards.

    Formal guarantee: `release` may be called once for each statistic of the program, on all N records in any order of
    statistics; what it computes from a record may depend on earlier releases. The ledger contains the line of a release
    before anything of it is visible, and refuses what the plan does not contain. Checked by:
    tests/program/test_program.py.

    Args:
        program: calibrated.
        sampler: of the training that follows; its N divides every sum.
        ledger: a file for the one ledger of the program, in memory if left out.
        noise_source: as for the Privatizer.

    Raises:
        PrivacyError: the draws are of users.

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
        if self._sampler.users is not None:
            raise PrivacyError(
                "Statistics are of single records, and their noise hides one record, not a user. Leave unit= out, or "
                "train without statistics."
            )
        self._source, reducer = as_source(noise_source), default_reducer()
        description = {**program.describe(), "records": self._sampler.records}
        self.ledger = Ledger(ledger, plan=whole_plan(program, self._sampler), description=description)
        self._released: set[str] = set()
        self._releaser = Releaser(
            ledger=self.ledger,
            states=NoiseStates(Gaussian()),
            source=self._source,
            reducer=reducer,
            divisor=float(self._sampler.records),
        )

    @property
    def covered(self) -> bool:
        """Whether ε describes the releases: false for a fixed seed."""
        return self._source.private

    def release(self, name: str, values: Tensor) -> Released:
        """Release (Σ_i clip(row_i) + noise) / N of a statistic.

        Args:
            values: all N records, in the form that the statistic takes.

        Raises:
            ValueError: the program has no such statistic, or these are not all records.
            PrivacyError: the statistic was released already.
        """
        self._check(name, len(values))
        total = self._total(name, values)
        event = self.program.statistic_event(name, self._sampler)
        # Steps before the training have negative numbers, in a run that is resumed too.
        step = self.ledger.count - len(self.program.statistics)
        with self._releaser.record(Charge(event=event, rate=1.0), step=step) as draw:
            self._released.add(name)
            return draw.release(total, std=draw.std(total.sensitivity))

    def zeros(self, name: str, values: Tensor) -> Released:
        """Return zeros in the form of a release, for one that was paid for and lost in a crash.

        Nothing is released: of `values` only the shape of a record is read.
        """
        total = self._total(name, torch.zeros_like(values[:1]))
        std = gaussian_multiplier(self.program.statistic_event(name, self._sampler)) * total.sensitivity
        divisor = float(self._sampler.records)
        blocks = {
            block: torch.zeros_like(value, dtype=total.space.part(block).dtype)
            for block, value in total.blocks.items()
        }
        return Released(blocks=blocks, std=std / divisor, sensitivity=total.sensitivity / divisor)

    def _total(self, name: str, values: Tensor) -> ClippedSum:
        statistic = self.program.statistics[name].statistic
        clip = FlatClip(statistic.bound)
        return _sum(clip(statistic.rows(part), 0) for part in values.split(CHUNK))

    def _check(self, name: str, records: int) -> None:
        if name not in self.program.statistics:
            raise ValueError(
                f"The program has no statistic {name!r}; it has {', '.join(self.program.statistics) or 'none'}. "
                "What is not planned is not paid for: add it to the program before qg.calibrate."
            )
        if name in self._released:
            raise PrivacyError(f"The statistic {name!r} was released already. The plan pays for it once.")
        if records != self._sampler.records:
            raise ValueError(
                f"Expected the {self._sampler.records} records of the plan, got {records}. Pass all of them."
            )


def _sum(parts: Iterable[ClippedSum]) -> ClippedSum:
    total: ClippedSum | None = None
    for part in parts:
        total = part if total is None else total + part
    assert total is not None, "a sampler has at least one record"
    return total
