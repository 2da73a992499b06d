"""Research mode: observers that read private gradients. A run they watched is not covered by ε."""

from __future__ import annotations

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._representations.base import Public


class Observer:
    """Sees what nobody may see in a private run; for diagnostics and papers' figures.

    Example:
        class Norms(qg.Observer):
            def micro_batch(self, grads, public, mechanism):
                print(grads.squared_norms().sqrt())
    """

    def micro_batch(self, grads: PerSampleGrads, public: Public, mechanism: Mechanism) -> None:
        """Per-sample gradients of a micro-batch; codecs through `public.codec(release.representation)`."""

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        """The releases of a step and the gradient made of them."""
