"""Choose how many bands correlated noise should have, from the plan and the budget alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quietgrad._noise.banded import BandedNoise
from quietgrad._noise.bands import mean_square, workload
from quietgrad.accounting.calibrate import smallest_noise
from quietgrad.accounting.events import BandedEvent, Phase, checked_rate, whole_number

LEAST_GAIN = 0.99
"""More bands need memory for each coordinate. They are taken if they leave at most this share of the noise."""


@dataclass(frozen=True, kw_only=True)
class BandChoice:
    """What noise of some number of bands costs and gains.

    Args:
        bands: b; `groups=b` of the batches.
        noise_multiplier: σ that the budget needs with b groups.
        relative_noise: root mean square noise of the partial sums of releases, relative to b = 1.
        noise: with the best coefficients; its `bands` may be fewer than b, if the last ones are zero.

    Example:
        choice = qg.choose_bands(rate=0.01, steps=130, epsilon=8.0, delta=1e-5)
        batches = qg.PoissonBatches(train_set, rate=0.01, steps=130, groups=choice.bands)
        mechanism = replace(qg.methods.dp_sgd(), noise=choice.noise)
    """

    bands: int
    noise_multiplier: float
    relative_noise: float
    noise: BandedNoise


def band_choices(
    *, rate: float, steps: int, epsilon: float, delta: float, momentum: float = 0.0, most: int = 64
) -> list[BandChoice]:
    """Compute what 1, 2, 4, … bands give at a budget.

    Returns:
        one choice for each number of bands.

    Args:
        rate: q, of the expected batch.
        steps: of the plan.
        epsilon: of the budget.
        delta: of the budget.
        momentum: of the optimizer.
        most: bands that memory allows: each takes 4 bytes a coordinate.

    Raises:
        ValueError: rate, steps or budget are out of range.
    """
    rate, steps = checked_rate(rate), whole_number("steps", steps, 1)
    largest = min(most, steps, math.floor(1 / rate + 1e-9))
    series, choices = workload(steps, momentum), list[BandChoice]()
    for bands in [2**power for power in range(max(largest, 1).bit_length())]:
        noise = BandedNoise.optimised(bands, steps, momentum)
        sigma = smallest_noise(
            lambda multiplier, b=bands: (  # type: ignore[misc]
                Phase(
                    event=BandedEvent(noise_multiplier=multiplier, bands=b),
                    rate=min(b * rate, 1.0),
                    count=math.ceil(steps / b),
                ),
            ),
            epsilon=epsilon,
            delta=delta,
        )
        size = sigma * math.sqrt(mean_square(noise.coefficients, series))
        first = choices[0] if choices else None
        plain = size if first is None else first.noise_multiplier * math.sqrt(mean_square([1.0], series))
        choices.append(
            BandChoice(bands=bands, noise_multiplier=sigma, relative_noise=size / plain, noise=noise)
        )
    return choices


def choose_bands(
    *, rate: float, steps: int, epsilon: float, delta: float, momentum: float = 0.0, most: int = 64
) -> BandChoice:
    """Choose the number of bands that leaves least noise in the sum of all releases.

    Only the plan and the budget are read, so the choice costs nothing. One band, which is the noise of DP-SGD, is
    chosen where nothing is gained: at small ε, and in many epochs.

    Returns:
        the choice; see `band_choices` for the arguments.
    """
    choices = band_choices(rate=rate, steps=steps, epsilon=epsilon, delta=delta, momentum=momentum, most=most)
    best = choices[0]
    for choice in choices[1:]:
        if choice.relative_noise < LEAST_GAIN * best.relative_noise:
            best = choice
    return best
