"""A mechanism: which releases a step makes of its batch, with which noise and which post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, overload

from quietgrad._errors import PrivacyError
from quietgrad._mechanism.clipping import Clip
from quietgrad._mechanism.description import describe
from quietgrad._mechanism.post import Inside, Post
from quietgrad._noise.base import Noise
from quietgrad._noise.gaussian import Gaussian
from quietgrad._representations.base import Representation
from quietgrad._representations.compose import Composed
from quietgrad.accounting.events import Event, Phase
from quietgrad.accounting.planning import Steps


@dataclass(frozen=True, kw_only=True)
class Release:
    """One thing released from a batch: encode, clip, sum, noise.

    Args:
        representation: the space it is released in.
        clip: bounds each sample there.
        share: f_j, its part of the step's budget.

    Example:
        release = qg.Release(representation=qg.RandomMask(0.5), clip=qg.FlatClip(1.0))
        mechanism = qg.Mechanism(name="half", releases=(release,))
    """

    representation: Representation
    clip: Clip
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """All releases of one step, under one effective noise multiplier σ.

    Release j with share f_j and sensitivity S_j gets noise of std σ/√f_j·S_j; as Σ f_j = 1, the step is one Gaussian
    mechanism of multiplier σ. The std that is drawn (`std`) and the event that is accounted (`event`) come from the
    same fields of this object. Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law4_noise.py.

    Args:
        name: as in tables and reports.
        releases: shares sum to 1.
        noise: Gaussian, or selection + Gaussian.
        post: applied in order to the decoded release, free.
        noise_multiplier: σ; None until calibrated; 0 means ε = ∞.

    Raises:
        ValueError: the shares do not sum to 1, or the multiplier is negative or infinite.
        PrivacyError: there are several releases, and the noise accounts for one.

    Example:
        mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.1)
        std = mechanism.std(mechanism.releases[0], step=0)
    """

    name: str
    releases: tuple[Release, ...]
    noise: Noise = field(default_factory=Gaussian)
    post: tuple[Post, ...] = ()
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        shares = [release.share for release in self.releases]
        if not shares or any(not 0 < share <= 1 for share in shares) or not math.isclose(sum(shares), 1.0):
            raise ValueError(
                f"Expected shares in (0, 1] that sum to 1, got {shares}. Pass shares=(…) to qg.both."
            )
        if self.noise.one_release and len(shares) > 1:
            raise PrivacyError(
                f"{type(self.noise).__name__} accounts for one release of a batch, and {self.name} makes "
                f"{len(shares)}. Use it in a mechanism of one release, or combine mechanisms with Gaussian noise."
            )
        if self.noise.needs_fixed_space:
            _check_fixed(self)
        if self.noise_multiplier is not None:
            _check_multiplier(self.noise_multiplier)
            object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))

    def with_noise(self, noise_multiplier: float) -> Mechanism:
        """Return the mechanism at another σ."""
        return replace(self, noise_multiplier=noise_multiplier)

    def for_budget(self, batches: Steps, *, epsilon: float, delta: float) -> Mechanism:
        """Return the mechanism with everything fixed that depends on the budget, except σ."""
        return replace(self, noise=self.noise.for_budget(batches, epsilon=epsilon, delta=delta))

    def before(self, batches: Steps) -> tuple[Phase, ...]:
        """Return what is released before the first step: nothing, unlike in a program."""
        return ()

    def multiplier(self, step: int) -> float:
        """Return σ of a step."""
        return self.noise.multiplier(self._calibrated, step)

    def std(self, release: Release, step: int) -> float:
        """Return the std of the noise on a release's sum, σ/√f·S."""
        return self.multiplier(step) / math.sqrt(release.share) * release.clip.sensitivity(step)

    def event(self, step: int) -> Event:
        """Return what the step costs."""
        return self.noise.event(self._calibrated, step)

    def describe(self) -> dict[str, Any]:
        """Return plain data, equal exactly for equal mechanisms."""
        described: dict[str, Any] = describe(self)
        return described

    @property
    def _calibrated(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError(
                f"{self.name} has no noise yet. Calibrate it with qg.calibrate(mechanism, batches, epsilon=…, "
                "delta=…), or set it with mechanism.with_noise(…); 0 is a non-private run."
            )
        return self.noise_multiplier

    def __add__(self, other: Mechanism) -> Mechanism:
        """Combine two releases of one batch at equal shares; see `both` for other shares."""
        return both(self, other)

    def __matmul__(self, representation: Representation) -> Mechanism:
        return within(self, representation)

    def __rshift__(self, post: Post) -> Mechanism:
        return then(self, post)


def both(a: Mechanism, b: Mechanism, shares: tuple[float, float] = (0.5, 0.5)) -> Mechanism:
    """Release with both mechanisms from each batch and add what they decode to.

    `a + b` does so with equal shares.

    Args:
        shares: the parts of the budget, summing to 1. (a + b) + c gives c one half: state the shares when it matters.

    Returns:
        the mechanism of both.

    Raises:
        ValueError: the shares do not sum to 1, the two have different noise, or one is post-processed already.
    """
    if any(not 0 < share < 1 for share in shares) or not math.isclose(sum(shares), 1.0):
        raise ValueError(f"Expected two shares in (0, 1) that sum to 1, got {shares}.")
    if a.noise != b.noise or a.noise_multiplier != b.noise_multiplier:
        raise ValueError(
            f"{a.name} and {b.name} have different noise; one batch has one budget. Combine them before qg.calibrate."
        )
    if a.post or b.post:
        raise ValueError("A post-processed mechanism cannot be added to another. Apply qg.then to the sum.")
    releases = tuple(
        replace(release, share=release.share * share)
        for mechanism, share in zip((a, b), shares, strict=True)
        for release in mechanism.releases
    )
    return replace(a, name=f"{a.name}+{b.name}", releases=releases)


@overload
def within(outer: Mechanism, inner: Representation) -> Mechanism: ...
@overload
def within(outer: Representation, inner: Representation) -> Representation: ...
def within(outer: Mechanism | Representation, inner: Representation) -> Mechanism | Representation:
    """Encode with `inner` first and do `outer` inside its space: `outer @ inner`.

    Public gradients are encoded too.

    Returns:
        a mechanism or a representation, as `outer` is.
    """
    if isinstance(outer, Representation):
        return Composed(outer, inner)
    releases = tuple(
        replace(release, representation=Composed(release.representation, inner)) for release in outer.releases
    )
    post = tuple(Inside(post, inner) for post in outer.post)
    return replace(outer, name=f"{outer.name}@{type(inner).__name__}", releases=releases, post=post)


def then(mechanism: Mechanism, post: Post) -> Mechanism:
    """Post-process what the mechanism releases (`mechanism >> post`).

    Returns:
        the mechanism with that step after its others.
    """
    return replace(mechanism, post=(*mechanism.post, post))


def _check_fixed(mechanism: Mechanism) -> None:
    moving = [r.representation for r in mechanism.releases if not r.representation.is_fixed]
    if moving:
        raise ValueError(
            f"{type(mechanism.noise).__name__} takes noise of earlier steps back, coordinate by coordinate, and those "
            f"of {type(moving[0]).__name__} change from step to step. Use it with dp_sgd, or keep Gaussian noise for "
            f"{mechanism.name}."
        )


def _check_multiplier(value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(
            f"Expected noise_multiplier >= 0 and finite, got {value}. Calibrate with qg.calibrate(…) or pass 0 for a "
            "non-private run."
        )
