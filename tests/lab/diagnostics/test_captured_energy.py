"""The energy that choosers of coordinates hold, on a run whose answer is known."""

from __future__ import annotations

import math

import pytest
from benchmarks.captured_energy import CapturedEnergy, Selector

import quietgrad as qg
from quietgrad._representations.masks.mask import RandomMask
from quietgrad._representations.masks.top_groups import TopGroups
from quietgrad.methods.gip.selection import Grouping
from tests.lab.diagnostics.test_sparse import watch


def test_captured_energy_of_known_choosers() -> None:
    grouping = Grouping(coordinates=371, group_size=371)
    observer = CapturedEnergy(
        {
            "all": RandomMask(0.0),
            "random": RandomMask(0.8, redraw="step"),
            "uniform": Selector(grouping, 0.0, 0.2),
            "true top": Selector(grouping, 60.0, 0.2),
            "history": TopGroups(0.8, group_by=1, explore=0.0, memory=0.5, redraw="step"),
        }
    )
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(0.01)
    watch(mechanism, observer, [[0, 1, 2, 3]] * 40)
    means = {n: sum(r.captured[n] for r in observer.reports) / 40 for n in observer.choosers}
    assert means["all"] == pytest.approx(1.0)
    assert means["random"] == pytest.approx(0.2, abs=0.06)
    assert means["uniform"] == pytest.approx(0.2, abs=0.06)
    assert means["true top"] > 0.6
    assert means["true top"] >= means["history"] > 2 * means["random"]
    first = observer.reports[0]
    assert 0 < first.gradient_to_noise <= 4 / (0.01 * math.sqrt(371))
