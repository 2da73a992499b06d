"""How loud the noise is, told by the releases themselves: free post-processing, no private gradient is read.

    E⟨g̃_t, g̃_{t+1}⟩ ≈ ‖s‖²  (their noises are independent),    E‖g̃_t‖² = ‖s‖² + ‖noise‖²

so √((mean ‖g̃‖² − mean ⟨g̃_t, g̃_{t+1}⟩) / mean ⟨g̃_t, g̃_{t+1}⟩) estimates noise over signal of what reaches the optimizer,
after decoding and post-processing. The batch's own sampling noise counts as noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class SignalMeter:
    """Adds up squared lengths and products of successive public gradients."""

    def __init__(self) -> None:
        self._last: list[Tensor] | None = None
        self._squares, self._products, self._steps, self._pairs = 0.0, 0.0, 0, 0

    @torch.no_grad()
    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take in the gradients after a release."""
        now = [p.grad.clone() for p in parameters if p.grad is not None]
        self._squares += sum(float(part.square().sum()) for part in now)
        self._steps += 1
        if self._last is not None:
            self._products += sum(float((a * b).sum()) for a, b in zip(now, self._last, strict=True))
            self._pairs += 1
        self._last = now

    @property
    def noise_to_signal(self) -> float | None:
        """None while nothing can be told: too few steps, or noise that hides the signal altogether."""
        if not self._pairs or self._products <= 0:
            return None
        signal = self._products / self._pairs
        return math.sqrt(max(self._squares / self._steps - signal, 0.0) / signal)

    def state_dict(self) -> dict[str, float]:
        return {
            "squares": self._squares,
            "products": self._products,
            "steps": self._steps,
            "pairs": self._pairs,
        }

    def load_state_dict(self, saved: dict[str, float]) -> None:
        self._squares, self._products = saved["squares"], saved["products"]
        self._steps, self._pairs = int(saved["steps"]), int(saved["pairs"])
