"""The code of docs/extending.md runs, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._capture.registry import ADAPTERS
from quietgrad._mechanism.clipping import MARGIN
from quietgrad.lab.run.config import parse_config

DOCS = Path(__file__).parents[2] / "docs"


def code(page: str, first_line: str) -> str:
    (found,) = re.findall(rf"```python\n({first_line}\n.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    return str(found)


def lines_of_code(text: str) -> int:
    body = [
        line for line in text.splitlines() if line.strip() and not line.startswith(("#", "import", "from"))
    ]
    return len(body)


def test_the_new_method_has_about_20_lines_and_puts_noise_on_biases_alone() -> None:
    text = code("extending.md", "# method")
    assert lines_of_code(text) <= 20
    names: dict[str, Any] = {"__name__": __name__}
    exec(text, names)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(50, 4), torch.randint(3, (50,)))
    batches = qg.PoissonBatches(data, rate=0.2, steps=3)
    mechanism = qg.calibrate(names["bitfit"](), batches, epsilon=3.0, delta=1e-5)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for x, y in batch.split(16):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
        assert private.epsilon(1e-5) <= 3.0
        (release,) = private.explain().releases
    assert release.dimension == 8 + 3
    weight, bias = model.get_parameter("0.weight").grad, model.get_parameter("0.bias").grad
    assert weight is not None
    assert bias is not None
    assert weight.count_nonzero() == 0
    assert bias.count_nonzero() == 8


def test_the_new_noise_remembers_in_public_and_in_secret() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(code("extending.md", "# noise"), names)
    model, data = nn.Linear(4, 3), TensorDataset(torch.randn(50, 4), torch.randint(3, (50,)))
    batches = qg.PoissonBatches(data, rate=0.2, steps=3)
    with qg.Privatizer(model, names["mechanism"].with_noise(1.0), batches) as private:
        for batch in batches:
            for x, y in batch.split(16):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
        assert private.state_dict()["noise"] == {"0": {"draws": 3}}
    assert model.weight.grad is not None


class Scale(nn.Module):
    """y = w ⊙ x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def test_the_new_layer_has_about_10_lines_and_gives_the_per_sample_gradients_of_autograd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = code("extending.md", "# layer")
    assert lines_of_code(text) <= 10
    monkeypatch.setitem(ADAPTERS, Scale, ADAPTERS[nn.Linear])  # so that the entry is taken back afterwards
    exec(text, {"__name__": __name__, "Scale": Scale})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Scale(6), nn.Linear(6, 3))
    x, y = torch.randn(5, 7, 4), torch.randint(3, (5,))
    batches = qg.PoissonBatches(TensorDataset(x, y), rate=1.0, steps=1)
    mechanism = qg.methods.dp_sgd(clip=0.3).with_noise(0.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        for inputs, labels in next(iter(batches)).split(5):
            private.backward(F.cross_entropy(model(inputs).mean(1), labels, reduction="none"))
        private.release()
    found = model[1].weight.grad
    expected = torch.zeros(6)
    for i in range(5):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]).mean(1), y[i : i + 1]).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.cat([g.flatten() for g in grads]).norm()
        assert isinstance(model[1], Scale)
        assert model[1].weight.grad is not None
        expected += model[1].weight.grad * min(1.0, 0.3 * (1 - MARGIN) / float(norm)) / 5
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_quickstart_config_is_valid() -> None:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "quickstart.md").read_text(), flags=re.DOTALL)
    assert parse_config(tomllib.loads(text)).data.name == "patients.npz"
    assert len(text.splitlines()) < 16
