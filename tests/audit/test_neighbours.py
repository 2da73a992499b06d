"""Neighbouring runs as a tool: silent on every method, loud on data-dependent behaviour."""

from __future__ import annotations

import pytest
from benchmarks.broken import BatchSizeDivisor, SkipsEmptyBatches, no_clip
from torch import nn

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad.audit.neighbours import NeighbourReport, compare_neighbours
from tests.cases.methods import METHODS, MethodCase, method_ids
from tests.cases.world import losses_of, records, small_net


def compare(mechanism: Mechanism, **options: object) -> NeighbourReport:
    return compare_neighbours(
        small_net(),
        mechanism,
        records(),
        losses_of,
        rate=0.25,
        deterministic=True,
        **options,  # type: ignore[arg-type]
    )


def kinds(report: NeighbourReport) -> set[str]:
    return {difference.kind for difference in report.differences}


# Law 3 is tested for every method; the tool is tried on one of each kind.
KINDS = [case for case in METHODS if case.name in ("gep", "rgp", "ranked_freeze", "gip", "top_groups_paid")]


@pytest.mark.parametrize("case", KINDS, ids=method_ids)
def test_every_kind_of_method_passes(case: MethodCase) -> None:
    report = compare(case.build(0.5).with_noise(2.0), loss_scales=(1e4,))
    assert report.passed, str(report)
    assert 0.3 < report.largest_change <= 1.0


DP_SGD = METHODS[0].build(0.5).with_noise(2.0)


def test_a_batch_size_divisor_is_caught() -> None:
    report = compare(DP_SGD, privatizer=BatchSizeDivisor)
    assert "divisor" in kinds(report)
    assert "qN = 10" in str(report)


def test_skipped_empty_batches_are_caught() -> None:
    report = compare(DP_SGD, privatizer=SkipsEmptyBatches)
    assert {"control flow", "random draws", "ledger"} <= kinds(report)


def test_a_loop_that_skips_empty_batches_is_caught() -> None:
    def loop(private: Privatizer, batches: qg.PoissonBatches, model: nn.Module) -> None:
        for batch in batches:
            if not len(batch):
                continue
            for x, y in batch.split(8):
                private.backward(losses_of(model, x, y))
            private.release()

    assert "control flow" in kinds(compare(DP_SGD, loop=loop))


def test_a_missing_clip_is_caught() -> None:
    report = compare(no_clip(DP_SGD))
    assert "sensitivity" in kinds(report)
    assert report.largest_change > 1


def test_plain_dp_sgd_has_nothing_to_report() -> None:
    report = compare(DP_SGD)
    assert report.passed
    assert report.as_dict()["differences"] == []
    assert "no leak found" in str(report)


def test_an_error_in_both_runs_is_the_users() -> None:
    def loop(*_: object) -> None:
        raise ValueError("the user's own mistake")

    with pytest.raises(ValueError, match="own mistake"):
        compare(DP_SGD, loop=loop)
