"""Weight standardisation. Qiao, Wang, Liu, Shen, Yuille: Micro-batch training with weight standardization (2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StandardisedConv2d(nn.Conv2d):
    """A convolution with each filter shifted to mean 0 and scaled to variance 1 / fan-in.

    w' = (w - mean(w)) / sqrt(fan_in * var(w) + eps), per output channel; the norm that follows sets the scale.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in nn.Conv2d)
        """Convolve with the standardised weight."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = self.weight[0].numel()
        weight = (self.weight - mean) * torch.rsqrt(fan_in * variance + 1e-4)
        out: Tensor = self._conv_forward(input, weight, self.bias)
        return out
