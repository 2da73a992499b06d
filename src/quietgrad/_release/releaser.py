"""Release the sums of a run: ledger line, then noise, then the check that the two agree.

Everything that quietgrad releases comes from here: training steps, statistics of all records, federated rounds, and
several releases of one draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import TracebackType

from quietgrad._collective import Reducer
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.base import NoiseDraw
from quietgrad._noise.sources import NoiseSource
from quietgrad._release.conservation import (
    check_at_most,
    check_conservation,
    gaussian_multiplier,
    precision_of,
)
from quietgrad._release.noise_states import NoiseStates
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import Charge


@dataclass(frozen=True, kw_only=True)
class Releaser:
    """Make the releases of a run, each draw after its line in the ledger.

    Args:
        ledger: gets one line per draw, however many releases are made of it.
        states: the run's noise and what it remembers.
        source: of the noise's integers.
        reducer: adds the sums of several ranks.
        divisor: of every sum; public.
    """

    ledger: Ledger
    states: NoiseStates
    source: NoiseSource
    reducer: Reducer
    divisor: float

    def record(self, charge: Charge, *, step: int) -> AccountedDraw:
        """Write the draw into the ledger and return what may then be released of it.

        The line is on disk before any noise is drawn: a crash from here on can only over-count.

        Raises:
            ValueError: the plan of the ledger does not contain this event, or no more of it.
        """
        multiplier = gaussian_multiplier(charge.event)
        self.ledger.record(
            charge.event, charge.rate, step=step, group=charge.group, partition=charge.partition
        )
        return AccountedDraw(self, multiplier, step)


class AccountedDraw:
    """One draw that the ledger has counted, and everything that is released of it.

    Formal guarantee: the precisions (S/s)² of all releases never sum to more than the event accounts for. A release
    beyond that is refused before its noise is drawn. Leaving the `with` block, or `finish()`, requires equality.
    Checked by: tests/laws/test_law0_conservation.py, tests/release/test_releaser.py.

    Args:
        releaser: of the run; only its `record` makes draws.
        multiplier: σ of the event's Gaussian part.
        step: of the run.

    Attributes:
        precision: Σ (S/s)² of what was released so far.
    """

    def __init__(self, releaser: Releaser, multiplier: float, step: int) -> None:
        self._releaser, self._multiplier, self.step = releaser, multiplier, step
        self._accounted = precision_of(1.0, multiplier)
        self.divisor = releaser.divisor
        self.precision, self._count = 0.0, 0

    def std(self, sensitivity: float, share: float = 1.0) -> float:
        """Return the std σ/√f·S of a release of sensitivity S that takes the share f of the draw."""
        return self._multiplier / math.sqrt(share) * sensitivity

    def release(self, total: ClippedSum, *, std: float) -> Released:
        """Add noise to a sum and return it over the divisor.

        Raises:
            RuntimeError: the event does not account for a release with so little noise (law 0).
        """
        self.check_room(precision_of(total.sensitivity, std))
        run = self._releaser
        draw = NoiseDraw(
            std=std, divisor=self.divisor, source=run.source, reducer=run.reducer, step=self.step
        )
        state = run.states.get(self._count, total.space)
        released, state = run.states.noise.release(total, draw, state)
        # At once: should anything after this fail, a second try must not use the same secret again.
        run.states.put(self._count, state)
        self.accept(released)
        return released

    def accept(self, released: Released) -> None:
        """Count a release; one whose noise was added elsewhere (by clients under secure aggregation) too.

        Raises:
            RuntimeError: the event does not account for it (law 0).
        """
        self.check_room(released.precision)
        self.precision += released.precision
        self._count += 1

    def check_room(self, precision: float) -> None:
        """Refuse a release that the event no longer accounts for.

        Raises:
            RuntimeError: with it, more would be released than is accounted for (law 0).
        """
        if self._count and self._releaser.states.noise.one_release:
            raise RuntimeError(
                "The event accounts for one release of this draw, not for a second: this is a bug."
            )
        check_at_most(self.precision + precision, self._accounted)

    def finish(self) -> None:
        """End the draw: require that all that is accounted for was released.

        Raises:
            RuntimeError: it was not (law 0).
        """
        check_conservation(self.precision, self._accounted)

    def __enter__(self) -> AccountedDraw:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error inside ends the draw early: less was released than counted, and the error itself matters more.
        if kind is None:
            self.finish()
