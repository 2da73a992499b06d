"""The README's example runs as it stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.pages import ROOT, snippets


def test_the_example_trains_and_leaves_a_plain_model(capsys: pytest.CaptureFixture[str]) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 8, generator=rng)
    labels = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    scope = {"train_set": TensorDataset(x, labels), "model": model}
    for code in snippets(ROOT / "README.md"):
        exec(code, scope)
    printed = capsys.readouterr().out
    assert 2.99 < float(printed.splitlines()[0]) <= 3.0
    assert "sensitivity" in printed
    assert (model(x).argmax(1) == labels).float().mean() > 0.9
    assert type(scope["optimizer"]) is torch.optim.SGD
    fresh = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    fresh.load_state_dict(model.state_dict(), strict=True)
