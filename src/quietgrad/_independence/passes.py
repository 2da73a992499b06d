"""One pass of the user's code: what it is asked to compute, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from quietgrad._independence.fingerprints import Fingerprints


@dataclass(frozen=True)
class ProbePass:
    """Ask for one pass of the user's code.

    Args:
        records: what to collate.
        stayed: the places, in the original micro-batch, of records that are in this one too.
        places: where these are now.
        evaluating: whether the model is in evaluation mode.
    """

    records: Sequence[Any]
    stayed: Int64[Tensor, " k"]
    places: Int64[Tensor, " k"]
    evaluating: bool = False


@dataclass(frozen=True)
class PassResult:
    """Describe one pass.

    Args:
        fingerprints: of its records, in their order.
        shapes: of everything that was collated; None where it is not known.
        drew: whether a global random generator moved.
        spread: whether a number that is not finite was met where it may have reached the rows of others.
    """

    fingerprints: Fingerprints
    shapes: tuple[Any, ...] | None
    drew: bool
    spread: bool = False

    @property
    def suspects(self) -> Bool[Tensor, " n"]:
        """Which records have a loss or gradient that is not finite, or may have."""
        return (
            torch.ones(len(self.fingerprints), dtype=torch.bool)
            if self.spread
            else ~self.fingerprints.are_finite
        )
