"""Preconditioned DP-SGD: DP-SGD in coordinates in which the inputs of each layer are nearly white.

    P = (A/ā + d·I)^(-p) on the input side of each matrix, A the second moment of its inputs on probes
    s̃ = Σ_i clip_C(c·P·g_i) + σC·z,    g̃ = κ·P·s̃ / qN

The probes are public or made-up inputs. Related methods differ in what they do after the noise: AdaDPS (Li, Zaheer,
Reddi, Smith 2022) and DP-KFC leave P·g + z, which noise of equal length in all directions does not repay; dividing by
P again only moves noise to where the curvature is. docs/methods/preconditioned.md derives it.

Formal guarantee: one release of sensitivity C with noise σC, so each step is a Poisson-subsampled Gaussian mechanism of
multiplier σ. P, c and κ depend on probes, public randomness and past releases only; decoding is post-processing.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py
"""

from __future__ import annotations

from quietgrad._mechanism.clipping import Clip, FlatClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.base import PublicLosses
from quietgrad._representations.preconditioned.scaling import Preconditioned, Sides
from quietgrad.schedules import Schedule


def preconditioned(
    probes: PublicLosses,
    *,
    clip: float | Schedule | Clip = 1.0,
    power: float = 0.5,
    damping: float | None = None,
    sides: Sides = "input",
    refresh_every: int | None = None,
) -> Mechanism:
    """Scale layer inputs before the clip, and the noisy sum after it.

    Args:
        probes: `model -> losses[m]` on public or made-up inputs (`qg.public_losses.random_label_losses` makes them); in
            a config "made-up", which is meant if left out, or "public".
        clip: C of the scaled gradient, or another `Clip`. The median probe's gradient keeps its length.
        power: p.
        damping: d, in units of the mean eigenvalue; left out, it follows `qg.rules.preconditioner_damping` at the
            noise of the run.
        sides: "input", or "both" for output gradients too.
        refresh_every: steps between two scalings; None makes one for the whole run.
    """
    representation = Preconditioned(
        probes=probes, power=power, damping=damping, sides=sides, refresh_every=refresh_every
    )
    rule = clip if isinstance(clip, Clip) else FlatClip(clip)
    return Mechanism(name="preconditioned", releases=(Release(representation=representation, clip=rule),))
