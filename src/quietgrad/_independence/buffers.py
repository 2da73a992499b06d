"""The buffers of a model, so that a pass can be repeated from the same ones."""

from __future__ import annotations

import torch
from torch import nn


class Buffers:
    """Remember the buffers of a model: spectral norm, for example, changes its own at every forward."""

    def __init__(self, model: nn.Module) -> None:
        self._remembered = [(buffer, buffer.clone(), buffer._version) for buffer in model.buffers()]

    @property
    def are_unchanged(self) -> bool:
        """Whether no buffer was written to."""
        return all(buffer._version == version for buffer, _, version in self._remembered)

    def restore(self) -> None:
        """Put back what was changed."""
        with torch.no_grad():
            for index, (buffer, value, version) in enumerate(self._remembered):
                if buffer._version != version:
                    buffer.copy_(value)
                    self._remembered[index] = buffer, value, buffer._version
