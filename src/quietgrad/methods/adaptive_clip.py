"""DP-SGD with a clip bound that follows a quantile of the gradient norms (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    g̃ = C·(Σ_i clip_1(g_i/C) + σ/√(1−f)·z) / qN
    b̃ = ½ + (Σ_i (½ − [‖g_i‖ > C]) + σ/(2√f)·z') / qN,    C ← C·exp(−η·(b̃ − γ))

Formal guarantee: the gradient has sensitivity 1 and the count ½. Their noise is for shares 1 − f and f of the budget,
so the step is one Poisson-subsampled Gaussian mechanism of multiplier σ. In the paper's letters, with noise σ_g on the
gradient and σ_b on the count: σ⁻² = σ_g⁻² + (2σ_b)⁻². Naming the share instead of σ_b leaves no σ_b that is too small.
Checked by: tests/laws/test_law0_conservation.py, tests/laws/test_law2_sensitivity.py,
tests/methods/test_adaptive_clip.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from quietgrad._mechanism.clipping import MARGIN, Clip, FlatClip, PerGroupClip
from quietgrad._mechanism.mechanism import Mechanism, Release
from quietgrad._representations.adaptive_clip.clip_scale import ClippedCount, ClipScale


def adaptive_clip(
    *,
    quantile: float = 0.5,
    clip: float = 1.0,
    learning_rate: float = 0.2,
    share: float = 0.01,
    groups: Sequence[str] | None = None,
) -> Mechanism:
    """DP-SGD whose clip bound is moved, step by step, to a quantile of the gradient norms.

    Args:
        quantile: γ, the part of the records whose gradients shall not be clipped.
        clip: C before the first step.
        learning_rate: η, how fast C moves: by a factor e^η in a step at most.
        share: f, the part of the budget that the count takes. Its noise is σ/(2√f) records; 0.01 makes the gradient's
            noise 0.5% louder.
        groups: prefixes of parameter names, "" for all the rest; each group then has its own bound and count.

    Raises:
        ValueError: a number is out of range, or the count would take more than half of the budget.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"Expected quantile in (0, 1), got {quantile}.")
    if not 0 < share <= 0.5:
        raise ValueError(
            f"Expected share in (0, 0.5], got {share}: with more, the count would have less noise than the gradient."
        )
    if not 0 < learning_rate <= 2:
        raise ValueError(f"Expected learning_rate in (0, 2], got {learning_rate}.")
    prefixes = ("",) if groups is None else tuple(groups)
    if not prefixes or len(set(prefixes)) < len(prefixes):
        raise ValueError(f"Expected different prefixes of parameter names in groups, got {groups}.")
    FlatClip(clip)  # refuses a bound that float32 cannot guarantee
    scale = ClipScale(start=clip, quantile=quantile, learning_rate=learning_rate, groups=prefixes)
    unit: Clip = FlatClip(1.0) if len(prefixes) == 1 else PerGroupClip(dict.fromkeys(prefixes, 1.0))
    # Rows of ±½ are as long as the bound allows before its margin, so that they are not scaled.
    counts = FlatClip(math.sqrt(len(prefixes)) / 2 / (1 - MARGIN) * (1 + 1e-6))
    return Mechanism(
        name="adaptive_clip",
        releases=(
            Release(representation=scale, clip=unit, share=1.0 - share),
            Release(representation=ClippedCount(scale), clip=counts, share=share),
        ),
    )
