"""Which experiment stands behind which entry."""

from __future__ import annotations

from collections.abc import Mapping

from quietgrad.lab.papers.experiment import Experiment
from quietgrad.lab.papers.experiments import (
    gep_paper,
    gip_paper,
    pdp_sgd_paper,
    random_freeze_paper,
    rgp_paper,
)

EXPERIMENTS: Mapping[str, Mapping[str, Experiment]] = {
    "gep": gep_paper.EXPERIMENTS,
    "rgp": rgp_paper.EXPERIMENTS,
    "pdp_sgd": pdp_sgd_paper.EXPERIMENTS,
    "random_freeze": random_freeze_paper.EXPERIMENTS,
    "gip": gip_paper.EXPERIMENTS,
}


def experiment_of(paper: str, entry: str) -> Experiment | None:
    """None for what a test or a reader checks."""
    return EXPERIMENTS[paper].get(entry)
