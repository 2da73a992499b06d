"""Parameters that one module owns and another one uses have the gradients of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder
from tests.cases.layers import Apply
from tests.reference import looped

N = 4


def squares(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return model(*inputs).square().flatten(1).sum(1)


class Lists(nn.Module):
    """A ParameterList, a ParameterDict and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.ParameterList([torch.randn(3), torch.randn(3)])
        self.scales = nn.ParameterDict({"a": torch.randn(3)})
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.line = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.line((x + self.shifts[0]) * self.scales["a"]).tanh() * self.temperature + self.shifts[1]


class Wrapped(nn.Module):
    """What lies around a borrowing module stays on its own way."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(3, 3), inner, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)).tanh())


def product(m: Any, x: Tensor) -> Tensor:
    """Low-rank adapters multiply their matrices before they use them."""
    return F.linear(x, m.a.weight.T @ m.b.weight) + m.c(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lists": Lists,
    "functional": lambda: Apply(lambda m, x: F.linear(x, m.a.weight, m.a.bias), a=nn.Linear(3, 3)),
    "also called": lambda: Apply(lambda m, x: m.a(F.linear(x, m.a.weight)), a=nn.Linear(3, 3)),
    "product": lambda: Apply(
        product, a=nn.Linear(3, 2, bias=False), b=nn.Linear(3, 2, bias=False), c=nn.Linear(3, 3)
    ),
    "table": lambda: Apply(lambda m, x: m.line(x) @ m.e.weight.T[:, :3], line=nn.Linear(3, 4), e=nn.Embedding(5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [1, 2, N])
def test_parameters_of_other_modules_equal_the_loop(name: str, n: int) -> None:
    torch.manual_seed(0)
    model = Wrapped(MODELS[name]()).double()
    x = torch.randn(n, 2, 3, dtype=torch.float64)
    expected = looped(model, (x,), squares, n)
    recorder = Recorder(model)
    recorder.attach()
    for _ in range(2):
        grads = recorder.collect(squares(model, (x,)))
        for parameter, rows in expected.items():
            torch.testing.assert_close(grads.blocks[parameter].dense(), rows)
    recorder.detach()


def test_only_the_innermost_module_is_run_again() -> None:
    model = Wrapped(Lists()).double()
    recorder = Recorder(model)
    recorder.attach()
    grads = recorder.collect(squares(model, (torch.randn(N, 3, dtype=torch.float64),)))
    recorder.detach()
    assert type(grads.blocks["before.weight"]).__name__ == "FactoredGrad"
    assert type(grads.blocks["inner.line.weight"]).__name__ == "FactoredGrad"
    assert type(grads.blocks["inner.shifts.0"]).__name__ == "DenseGrad"
