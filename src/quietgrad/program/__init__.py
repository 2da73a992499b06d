"""Several kinds of release under one plan: statistics of all records first, training after them."""

from quietgrad.program.statistics import Mean, SecondMoments, Statistic

__all__ = ["Mean", "SecondMoments", "Statistic"]
