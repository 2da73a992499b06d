"""GradScaler does not go together with clipping: scaled losses are refused."""

from __future__ import annotations

from torch import Tensor

from quietgrad._errors import PrivacyError

LEAST_SCALE = 256.0
"""GradScaler's scales are powers of two and begin at 65,536; a weight in a loss is rarely one this large."""


def refuse_scaled(losses: Tensor) -> None:
    """Refuse `scaler.scale(losses)`: the last operation multiplied by a large power of two held in a tensor.

    Such losses would be clipped at the scale's size, and `scaler.step` would shrink the noise.

    Raises:
        PrivacyError: the losses were scaled. Decided from the scale, never from the losses.
    """
    scale = _last_factor(losses)
    if scale is not None and scale >= LEAST_SCALE and scale.hex().startswith("0x1.0000000000000p"):
        raise PrivacyError(
            f"The losses were multiplied by {scale:g}, as GradScaler does. Gradients are clipped as they come, so that "
            "a scale only lowers the clip, and scaler.step would divide the release by it. Pass the losses as they "
            "are, and call optimizer.step() without a scaler."
        )


def _last_factor(losses: Tensor) -> float | None:
    """Return the number that the last operation multiplied by; None if it was no multiplication by a number."""
    node = losses.grad_fn
    if node is None or node.name() != "MulBackward0":
        return None
    factor = node._saved_other  # type: ignore[attr-defined]
    if not isinstance(factor, Tensor) or factor.dim() != 0 or factor.requires_grad:
        return None
    return float(factor)
