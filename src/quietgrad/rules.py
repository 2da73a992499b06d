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


def preconditioner_damping(parameters: int, records: int, epsilon: float) -> float:
    """The damping of `qg.methods.preconditioned` for a model, a data set and a budget: max(1, p / 5Nε).

    Scaling lets more directions learn, and the noise of each costs loss. The noise of a whole run grows with p and with
    1/(Nε), and so does the damping that leaves weak directions alone. The factor was chosen on Fashion-MNIST, with a
    small CNN and a perceptron; docs/methods/preconditioned.md has the figures. Where p / Nε is above 100, DP-SGD itself
    is the safer choice.

    Args:
        parameters: p, how many parameters are trained.
        records: N.
        epsilon: of the whole run.

    Raises:
        ValueError: a number is not positive.
    """
    for name, value in (("parameters", parameters), ("records", records), ("epsilon", epsilon)):
        if not value > 0:
            raise ValueError(f"Expected {name} > 0, got {value}.")
    return max(1.0, parameters / (5 * records * epsilon))
