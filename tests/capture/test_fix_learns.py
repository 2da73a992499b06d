"""`qg.fix` keeps a model able to learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import quietgrad as qg


def made_up_table() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(400, 12, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LazyBatchNorm1d])
def test_a_fixed_model_of_tables_learns(norm: type[nn.Module]) -> None:
    """On 0.2: GroupNorm of single numbers, whose output is constant; accuracy 0.52 in the place of 0.97."""
    torch.manual_seed(0)
    x, y = made_up_table()
    first = nn.LazyBatchNorm1d() if norm is nn.LazyBatchNorm1d else nn.BatchNorm1d(32)
    plain = nn.Sequential(nn.Linear(12, 32), first, nn.ReLU(), nn.Linear(32, 2))
    plain(x)
    model = qg.fix(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


def test_on_tables_it_is_layer_norm() -> None:
    norm = nn.BatchNorm1d(6, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    same = nn.LayerNorm(6, eps=1e-3)
    same.load_state_dict({"weight": norm.weight, "bias": norm.bias})
    x = torch.randn(5, 6)
    torch.testing.assert_close(qg.fix(norm)(x), same(x))
