"""The README's example runs as it stands."""

from __future__ import annotations

import re

import numpy as np
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


@pytest.mark.parametrize("shape", [(6,), (8, 8)], ids=["a table", "images"])
def test_the_three_lines_for_tables_and_images_run(shape: tuple[int, ...]) -> None:
    """They stand in a sentence, between backticks: an import, and a fit of X and y."""
    found = re.findall(r"`(from quietgrad\.sklearn import [^`]+)`", (ROOT / "README.md").read_text())
    assert len(found) == 1
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=1500)
    X = rng.random((1500, *shape)).astype(np.float32) + y.reshape(-1, *(1 for _ in shape))
    line, fit = found[0].split("; ")
    scope = {"X": X, "y": y}
    exec(f"{line}\nclassifier = {fit}", scope)
    assert scope["classifier"].score(X, y) > 0.9  # type: ignore[attr-defined]
    assert scope["classifier"].privacy_["epsilon"] <= 1.0  # type: ignore[attr-defined]
