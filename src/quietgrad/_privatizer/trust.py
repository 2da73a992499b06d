"""What ranks must agree on before they work together: how records are held, who adds the noise."""

from __future__ import annotations

from quietgrad._collective import Facts, Reducer
from quietgrad._errors import PrivacyError
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.gaussian import Gaussian
from quietgrad._sampling.poisson import PoissonSampler


def join_ranks(reducer: Reducer, mechanism: Mechanism, sampler: PoissonSampler) -> None:
    """Compare how the ranks are set up, and count the records that each of them holds.

    Raises:
        PrivacyError: on every rank, if they are set up differently, or the noise cannot be shared.
        ValueError: on every rank, if records of its own cannot be drawn on each.
    """
    if reducer.world > 1:
        settings = {
            "reducer": type(reducer).__name__,
            "records": "local" if reducer.local_records else "shared",
            "honest": reducer.honest,
        }
        reducer.agree(lambda: Facts(equal={"trust between ranks": settings}))
    # The type itself: a subclass may draw otherwise, or remember what it drew. Selections need the sum without noise.
    if reducer.honest is not None and not (type(mechanism.noise) is Gaussian and mechanism.multiplier(0) > 0):
        raise PrivacyError(
            f"The noise of {mechanism.name} cannot be shared among ranks: shares take Gaussian noise with σ > 0. Leave "
            "honest out, where rank 0 adds all noise and ranks trust each other."
        )
    sampler.join(reducer)
