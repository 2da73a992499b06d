"""Rules of thumb that papers or experiments here measured, as functions."""

from __future__ import annotations


def clip_for_momentum(clip: float, momentum: float, *, new_momentum: float = 0.0) -> float:
    """The clip bound that keeps C/(1 − μ) when the momentum changes (Random Freeze, section 3.4).

    Momentum adds past noise up to 1/(1 − μ) times its length, so that settings of equal C/(1 − μ) reach similar
    accuracy with everything else fixed; of these, the paper found (C=1, μ=0) better than (C=0.1, μ=0.9).

    Args:
        clip: C of the known setting.
        momentum: μ of the known setting.
        new_momentum: μ to go to.

    Raises:
        ValueError: the clip is not positive, or a momentum not in [0, 1).
    """
    if not clip > 0:
        raise ValueError(f"Expected clip > 0, got {clip}. It is the largest norm one sample may have.")
    for name, value in (("momentum", momentum), ("new_momentum", new_momentum)):
        if not 0 <= value < 1:
            raise ValueError(f"Expected {name} in [0, 1), got {value}.")
    return clip * (1 - new_momentum) / (1 - momentum)


PER_COORDINATE = 10.0
"""The noise p·σ/(qN√T), in units of the clip, at which directions of average energy begin to cost what they bring."""


def preconditioner_damping(parameters: int, noise: float) -> float:
    """The damping of `qg.methods.preconditioned`: max(1, (p·ν / 10)²), ν = σ/(qN√T) the noise of a run.

    A direction of the inputs with eigenvalue a is worth learning if the curvature there, times the squared way that its
    weights have to go, exceeds what noise costs: 2·γ·a·ω² > η·τ². Below that eigenvalue, scaling has to stop. With
    ω² ∝ 1/p, the learning rate η that noise allows and τ = σC/qN, it grows as (p·ν)². The 10 was chosen on MNIST,
    with a perceptron of 102,000 weights: docs/methods/preconditioned.md has the figures.

    Args:
        parameters: p, how many coordinates get noise.
        noise: ν, `Public.noise`.

    Raises:
        ValueError: p is not positive, or the noise negative.
    """
    if not parameters > 0:
        raise ValueError(f"Expected parameters > 0, got {parameters}.")
    if not noise >= 0:
        raise ValueError(f"Expected noise >= 0, got {noise}.")
    return max(1.0, (parameters * noise / PER_COORDINATE) ** 2)
