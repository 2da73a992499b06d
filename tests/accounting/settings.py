"""The reference table (delta = 1e-5), shared by the tests of the library and of the command line."""

from __future__ import annotations

from dataclasses import dataclass

from quietgrad.accounting import GaussianEvent, Phase

DELTA = 1e-5


@dataclass(frozen=True)
class Row:
    examples: int
    batch: int
    epochs: int
    noise: float
    pld: float
    rdp: float

    @property
    def rate(self) -> float:
        return self.batch / self.examples

    @property
    def steps(self) -> int:
        return round(self.epochs / self.rate)

    @property
    def phases(self) -> list[Phase]:
        return flat(self.noise, self.rate, self.steps)


def flat(noise: float, rate: float, steps: int) -> list[Phase]:
    return [Phase(event=GaussianEvent(noise_multiplier=noise), rate=rate, count=steps)]


REFERENCE = [
    Row(60_000, 1_000, 50, 1.9765, 2.000, 2.181),
    Row(60_000, 1_000, 50, 1.0710, 5.000, 5.454),
    Row(60_000, 1_000, 50, 0.8511, 8.000, 8.775),
    Row(10_000, 250, 30, 2, 1.877, 2.052),
    Row(10_000, 250, 30, 4, 0.816, 0.895),
    Row(10_000, 250, 30, 6, 0.517, 0.568),
    Row(10_000, 250, 30, 8, 0.375, 0.414),
    Row(10_000, 250, 30, 10, 0.294, 0.324),
    Row(10_000, 250, 30, 14, 0.203, 0.225),
    Row(10_000, 250, 30, 18, 0.154, 0.176),
    Row(50_000, 1_000, 40, 1.54, 2.753, 3.003),
    Row(50_000, 1_000, 80, 1.10, 6.914, 7.504),
]
# The table gives three decimals: half of the last one is as much as it says.
RELATIVE, ROUNDING = 2e-3, 5e-4
