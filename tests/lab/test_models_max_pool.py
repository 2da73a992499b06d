"""The lab's max pooling picks what torch's picks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quietgrad.lab.models.max_pool import MaxPool


def pooled(pool: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    inputs = x.clone().requires_grad_()
    out = pool(inputs)
    (grad,) = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), inputs)
    return out.detach(), grad


def test_values_and_gradients_are_those_of_torch_also_where_pixels_are_equal() -> None:
    x = torch.randint(3, (4, 5, 7, 6), generator=torch.Generator().manual_seed(0)).float()
    found, expected = pooled(MaxPool(2, stride=1), x), pooled(nn.MaxPool2d(2, stride=1), x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert found[0].is_contiguous()


def test_one_channel_is_pooled_too() -> None:
    x = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(MaxPool(2)(x), nn.MaxPool2d(2)(x))
