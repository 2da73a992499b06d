"""The second border: ClippedSum ──noise──▶ Released."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from quietgrad._collective import Reducer
from quietgrad._errors import PrivacyError
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.sources import NoiseSource
from quietgrad.accounting import events
from quietgrad.accounting.planning import Steps


@dataclass(frozen=True, kw_only=True)
class NoiseDraw:
    """One draw of noise onto a sum: how wide, from where, with which other ranks.

    Args:
        std: on each coordinate of the sum over all ranks.
        divisor: qN, the expected size of a batch; public, unlike its real size.
        source: where its integers come from.
        reducer: adds this rank's part to the others'.
        step: of the run, for noise that changes over steps.

    Example:
        draw = qg.NoiseDraw(std=1.0, divisor=64.0, source=source, reducer=reducer, step=0)
        released, state = qg.Gaussian().release(total, draw, qg.NoiseState())
    """

    std: float
    divisor: float
    source: NoiseSource
    reducer: Reducer
    step: int


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseState:
    """What noise remembers between draws; replaced, never changed in place.

    Formal guarantee: `secret` leaves no process. A state that has one cannot be pickled or copied, so a checkpoint
    that would hold it fails; a resumed run begins with the secret of `Noise.init`. Checked by:
    tests/release/test_noise_with_memory.py.

    Args:
        public: goes into checkpoints: tensors, numbers, strings, and dicts or lists of them.
        secret: whatever would reveal past noise or sums, such as the noise that later draws take back.

    Example:
        state = qg.NoiseState(public={"draws": 1}, secret=torch.randn(5))
        saved = state.public
    """

    public: dict[str, Any] = field(default_factory=dict)
    secret: Any = field(default=None, repr=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or copied with a secret.

        Raises:
            PrivacyError: there is one.
        """
        if self.secret is not None:
            raise PrivacyError(
                "The secret state of noise must not be saved or copied: with it, past noise could be subtracted. Save "
                "state.public, as Privatizer.state_dict() does; a resumed run draws a new secret."
            )
        return super().__reduce_ex__(protocol)


class Noise(ABC):
    """Turns a clipped sum into a release, and says what that costs.

    Example:
        noise: qg.Noise = qg.Gaussian()
        event = noise.event(1.1, step=0)
    """

    one_release: ClassVar[bool] = False
    """Whether `event` accounts for a single release of a draw, as with a selection. Gaussian parts of several add up
    under their shares; anything else that a release reveals would be counted once and revealed several times."""

    needs_fixed_space: ClassVar[bool] = False
    """Whether releases of different steps must have the same coordinates, as with correlated noise."""

    @abstractmethod
    def multiplier(self, noise_multiplier: float, step: int) -> float:
        """Return the effective Gaussian multiplier of a step.

        Raises:
            ValueError: it is not above 0 where noise is wanted.
        """

    @abstractmethod
    def event(self, noise_multiplier: float, step: int) -> events.Event:
        """Return what all releases of a step cost together."""

    def for_budget(self, batches: Steps, *, epsilon: float, delta: float) -> Noise:
        """Fix the parts, beside σ, that the budget decides; calibration calls it before it searches σ."""
        return self

    def init(self, space: Space) -> NoiseState:
        """Return the state before the first draw of a release; empty unless the noise has memory.

        Args:
            space: the blocks of the sum.
        """
        return NoiseState()

    def grid_steps(self, source: NoiseSource) -> float:
        """Return how many steps of the grid make one std of noise: the source's own, unless its draws are mixed."""
        return float(source.std)

    def remark(self, steps: int) -> str:
        """Say what a reader of `explain()` should know of it in a run of so many steps; nothing by default."""
        return ""

    @abstractmethod
    def release(self, total: ClippedSum, draw: NoiseDraw, state: NoiseState) -> tuple[Released, NoiseState]:
        """Return (Σ over ranks of total + std·z)/divisor, and the state from here on."""
