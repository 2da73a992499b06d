"""Which experiment stands behind which entry."""

from __future__ import annotations

from collections.abc import Mapping

from quietgrad.lab.papers.experiment import Experiment
from quietgrad.lab.papers.experiments import (
    gep_figures,
    gip_figures,
    pdp_sgd_figures,
    random_freeze_figures,
    rgp_figures,
)
from quietgrad.lab.papers.training_entries import regimes_of, trainings_of

_COMPUTED = {
    "gep": gep_figures.COMPUTED,
    "rgp": rgp_figures.COMPUTED,
    "pdp_sgd": pdp_sgd_figures.COMPUTED,
    "random_freeze": random_freeze_figures.COMPUTED,
    "gip": gip_figures.COMPUTED,
}
EXPERIMENTS: Mapping[str, Mapping[str, Experiment]] = {
    paper: {**trainings_of(paper), **regimes_of(paper), **computed} for paper, computed in _COMPUTED.items()
}


def experiment_of(paper: str, entry: str) -> Experiment | None:
    """Return the experiment of an entry, or None for what a test or a reader checks."""
    return EXPERIMENTS[paper].get(entry)
