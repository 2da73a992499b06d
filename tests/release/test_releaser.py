"""One draw, one ledger line, and never more released of it than the line accounts for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._collective import SingleProcess
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.base import Noise
from quietgrad._noise.gaussian import Gaussian
from quietgrad._noise.sources import NoiseSource, SeededSource
from quietgrad._release.conservation import gaussian_multiplier
from quietgrad._release.noise_states import NoiseStates
from quietgrad._release.releaser import AccountedDraw, Releaser
from quietgrad.accounting.events import GaussianEvent, JointEvent
from quietgrad.accounting.planning import Charge
from quietgrad.methods.gip import MallowsSelection

EVENT = GaussianEvent(noise_multiplier=2.0)
CHARGE = Charge(event=EVENT, rate=0.1)
SELECTION = MallowsSelection(theta=0.1, group_size=8, kept=2, groups=1)


class Counting(SeededSource):
    """Notes the ledger's count whenever noise is drawn."""

    def __init__(self, ledger: qg.Ledger) -> None:
        super().__init__(0)
        self.ledger, self.seen = ledger, list[int]()

    def fill(self, out: Tensor) -> None:
        self.seen.append(self.ledger.count)
        super().fill(out)


def releaser(
    *, ledger: qg.Ledger | None = None, source: NoiseSource | None = None, noise: Noise | None = None
) -> Releaser:
    return Releaser(
        ledger=ledger or qg.Ledger(),
        states=NoiseStates(noise or Gaussian()),
        source=source or SeededSource(0),
        reducer=SingleProcess(),
        divisor=4.0,
    )


def draw(multiplier: float = 2.0) -> AccountedDraw:
    return releaser().record(Charge(event=GaussianEvent(noise_multiplier=multiplier), rate=0.1), step=0)


def total(sensitivity: float = 1.0) -> ClippedSum:
    return ClippedSum(blocks={"w": torch.zeros(6)}, sensitivity=sensitivity)


def test_the_line_is_written_before_noise_is_drawn() -> None:
    ledger = qg.Ledger()
    source = Counting(ledger)
    with releaser(ledger=ledger, source=source).record(CHARGE, step=3) as opened:
        assert ledger.count == 1
        assert source.seen == []
        opened.release(total(), std=2.0)
    assert source.seen == [1]
    assert ledger.phases == (qg.accounting.Phase(event=EVENT, rate=0.1, count=1),)


def test_what_the_plan_refuses_draws_no_noise() -> None:
    ledger = qg.Ledger(plan=())
    source = Counting(ledger)
    with pytest.raises(ValueError, match="planned release"):
        releaser(ledger=ledger, source=source).record(CHARGE, step=0)
    assert source.seen == []


@pytest.mark.parametrize("count", [1, 3, 16])
def test_several_releases_of_a_draw_make_one_line(count: int) -> None:
    made = releaser()
    with made.record(CHARGE, step=0) as opened:
        parts = [opened.release(total(0.5), std=opened.std(0.5, share=1 / count)) for _ in range(count)]
    assert made.ledger.count == 1
    assert sum(part.precision for part in parts) == pytest.approx(2.0**-2, rel=1e-9)
    assert parts[0].std == pytest.approx(math.sqrt(count) * 2.0 * 0.5 / 4.0, rel=1e-4)


def test_one_release_too_many_is_refused_before_its_noise() -> None:
    ledger = qg.Ledger()
    source = Counting(ledger)
    opened = releaser(ledger=ledger, source=source).record(CHARGE, step=0)
    for _ in range(4):
        opened.release(total(), std=opened.std(1.0, share=0.25))
    with pytest.raises(RuntimeError, match="exceeds the accounted"):
        opened.release(total(), std=opened.std(1.0, share=0.25))
    assert len(source.seen) == 4


def test_less_noise_than_accounted_is_refused() -> None:
    with pytest.raises(RuntimeError, match="exceeds the accounted"):
        draw().release(total(), std=1.99)


def test_no_noise_is_refused_where_some_is_accounted() -> None:
    with pytest.raises(RuntimeError, match="exceeds the accounted"):
        draw().release(total(), std=0.0)


def test_less_than_accounted_ends_in_an_error() -> None:
    with pytest.raises(RuntimeError, match="differs from the accounted"), draw() as opened:
        opened.release(total(), std=opened.std(1.0, share=0.5))


def test_an_error_inside_a_draw_is_not_hidden_by_the_check() -> None:
    with pytest.raises(KeyError, match="own"), draw():
        raise KeyError("own")


def test_noise_that_was_added_elsewhere_is_counted_too() -> None:
    opened = draw()
    opened.accept(Released(blocks={}, std=2.0, sensitivity=1.0))
    opened.finish()
    with pytest.raises(RuntimeError, match="exceeds the accounted"):
        opened.accept(Released(blocks={}, std=200.0, sensitivity=1.0))


def test_a_run_without_noise_is_accounted_as_one() -> None:
    with draw(0.0) as opened:
        released = opened.release(total(), std=opened.std(1.0))
    assert released.std == 0.0


def test_noise_of_one_release_makes_no_second() -> None:
    class Once(Gaussian):
        one_release = True

    opened = releaser(noise=Once()).record(CHARGE, step=0)
    opened.release(total(), std=opened.std(1.0, share=0.5))
    with pytest.raises(RuntimeError, match="one release"):
        opened.release(total(), std=opened.std(1.0, share=0.5))


def test_a_mechanism_of_several_selections_is_refused() -> None:
    """Each would choose indices, and the event accounts for one choice."""
    batches = qg.PoissonSampler(40, rate=0.25, steps=4)
    gip = qg.methods.gip(100, batches, theta=0.1)
    with pytest.raises(qg.PrivacyError, match="one release of a batch"):
        qg.both(gip, gip)


def test_the_gaussian_part_of_an_event_says_how_much_noise_there_is() -> None:
    assert gaussian_multiplier(EVENT) == 2.0
    assert gaussian_multiplier(JointEvent(gaussian=EVENT, selections=(SELECTION,))) == 2.0
    with pytest.raises(RuntimeError, match="no Gaussian"):
        gaussian_multiplier(SELECTION)
