"""Copies from the host to a device that do not make the host wait."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor


def upload(values: Shaped[Tensor, "*shape"], device: torch.device) -> Shaped[Tensor, "*shape"]:
    """Return the values on a device; the host does not wait where torch can pin memory for that device.

    The copy starts from pinned memory, which torch does not use again before the copy is over. Positions of records and
    noise go this way: other numbers in their place would be a wrong guarantee, so that pageable memory is waited for.
    """
    if device.type == "cpu" or values.device.type != "cpu":
        return values.to(device)
    if not _can_pin(device.type):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _can_pin(kind: str) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == kind
