"""A registered adapter serves parameters of any name, or is refused by name; its gradients are never wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import quietgrad as qg
from quietgrad._capture.adapter import Pieces
from quietgrad._capture.recorder import Recorder
from quietgrad._capture.registry import ADAPTERS
from tests.cases.layers import Apply
from tests.reference import looped

N = 4


class Affine(nn.Module):
    """y = γ ⊙ (x K), with parameters of names that no layer of torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(3))
        self.kernel = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * (x @ self.kernel)


class AffineAdapter(qg.Adapter):
    """∂γ = Σ_t b_t ⊙ (Kᵀ x_t), ∂K = Σ_t x_t (γ ⊙ b_t)ᵀ."""

    parameters: ClassVar[tuple[str, ...]] = ("gamma", "kernel")
    feature_dims = 1
    asked: ClassVar[list[str]] = []

    def pieces(self, call: Any, layouts: Any, backprops: list[Tensor]) -> Pieces:
        self.asked.append(call.module_name)
        module, n = call.unit.module, len(backprops[0])
        b = backprops[0].reshape(n, -1, 3)
        x = qg.inputs_for(call.args[0], layouts[0], b).reshape(n, -1, 5)
        gamma, kernel = module.gamma.detach(), module.kernel.detach()
        return {
            "gamma": qg.DenseGrad((b * (x @ kernel)).sum(1)),
            "kernel": qg.FactoredGrad(b * gamma, x),
        }


class Forgetful(AffineAdapter):
    """Says that it has a gradient for the kernel, and has none."""

    def pieces(self, call: Any, layouts: Any, backprops: list[Tensor]) -> Pieces:
        return {"gamma": super().pieces(call, layouts, backprops)["gamma"]}


class Forgetting(AffineAdapter):
    """Has a gradient for the kernel in the first of several calls only: a sum of them would lack a part."""

    def pieces(self, call: Any, layouts: Any, backprops: list[Tensor]) -> Pieces:
        found = super().pieces(call, layouts, backprops)
        return found if call.index == 0 else {"gamma": found["gamma"]}


class Misshapen(AffineAdapter):
    """Returns the transposed kernel's gradient."""

    def pieces(self, call: Any, layouts: Any, backprops: list[Tensor]) -> Pieces:
        found = super().pieces(call, layouts, backprops)
        return {**found, "kernel": qg.DenseGrad(found["kernel"].dense().mT.contiguous())}


class Undeclared(AffineAdapter):
    """Names the parameters that most layers have."""

    parameters = qg.Adapter.parameters


@pytest.fixture(autouse=True)
def adapters_taken_back() -> Iterator[None]:
    before = dict(ADAPTERS)
    AffineAdapter.asked.clear()
    yield
    ADAPTERS.clear()
    ADAPTERS.update(before)


def squares(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return model(*inputs).square().flatten(1).sum(1)


def rows(width: int = 5) -> Tensor:
    return torch.randn(N, 2, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def collected(model: nn.Module, x: Tensor) -> Any:
    recorder = Recorder(model)
    recorder.attach()
    try:
        return recorder.collect(squares(model, (x,)))
    finally:
        recorder.detach()


def assert_equals_loop(model: nn.Module, x: Tensor) -> None:
    expected = looped(model, (x,), squares, N)
    grads = collected(model, x)
    assert expected
    for name, gradient in expected.items():
        torch.testing.assert_close(grads.blocks[name].dense(), gradient)


def test_parameters_of_any_name_take_the_registered_adapter() -> None:
    qg.register_adapter(Affine, AffineAdapter)
    model = nn.Sequential(nn.Linear(5, 5), Affine()).double()
    assert_equals_loop(model, rows())
    assert AffineAdapter.asked == ["1"]


@pytest.mark.parametrize("frozen", ["gamma", "kernel"])
def test_gradients_of_frozen_parameters_are_left_aside(frozen: str) -> None:
    qg.register_adapter(Affine, AffineAdapter)
    model = Affine().double()
    model.get_parameter(frozen).requires_grad_(False)
    grads = collected(model, rows())
    assert set(grads.blocks) == {"gamma", "kernel"} - {frozen}
    assert AffineAdapter.asked == ["Affine"]


def test_a_subclass_with_the_same_forward_takes_the_adapter() -> None:
    class Named(Affine):
        """Adds a name."""

        label = "named"

    qg.register_adapter(Affine, AffineAdapter)
    assert_equals_loop(Named().double(), rows())
    assert AffineAdapter.asked == ["Named"]


def test_a_subclass_with_another_forward_is_replayed() -> None:
    class Shifted(Affine):
        """Computes something else, for which the adapter would be wrong."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    qg.register_adapter(Affine, AffineAdapter)
    assert_equals_loop(Shifted().double(), rows())
    assert AffineAdapter.asked == []


def test_the_nearest_registered_class_decides() -> None:
    class Own(nn.Linear):
        """A linear layer with an adapter of its own."""

    class OwnAdapter(qg.Adapter):
        feature_dims = 1

        def pieces(self, call: Any, layouts: Any, backprops: list[Tensor]) -> Pieces:
            AffineAdapter.asked.append("own")
            b = backprops[0].reshape(N, -1, 3)
            x = qg.inputs_for(call.args[0], layouts[0], b).reshape(N, -1, 5)
            return {"weight": qg.FactoredGrad(x, b), "bias": qg.DenseGrad(b.sum(1))}

    qg.register_adapter(Own, OwnAdapter)
    assert_equals_loop(Own(5, 3).double(), rows())
    assert AffineAdapter.asked == ["own"]


def test_a_parametrised_module_is_replayed() -> None:
    class Squared(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.square()

    qg.register_adapter(Affine, AffineAdapter)
    model = Affine()
    parametrize.register_parametrization(model, "gamma", Squared())
    assert_equals_loop(model.double(), rows())
    assert AffineAdapter.asked == []


def test_an_adapter_that_does_not_name_a_trained_parameter_is_refused() -> None:
    qg.register_adapter(Affine, Undeclared)
    with pytest.raises(
        ValueError, match="Affine, which trains the parameter 'gamma', but has gradients for 'weight'"
    ):
        Recorder(Affine())
    Recorder(nn.Sequential(Affine().requires_grad_(False), nn.Linear(3, 2)))


def test_a_subclass_with_a_further_parameter_is_refused() -> None:
    class Wider(Affine):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))

    qg.register_adapter(Affine, AffineAdapter)
    with pytest.raises(ValueError, match="trains the parameter 'shift'"):
        Recorder(Wider())


@pytest.mark.parametrize("adapter", [Forgetful, Forgetting])
def test_an_adapter_that_returns_no_gradient_for_a_parameter_is_refused(adapter: type[qg.Adapter]) -> None:
    qg.register_adapter(Affine, adapter)
    affine = Affine()
    model = nn.Sequential(affine, nn.Linear(3, 5), affine).double()
    with pytest.raises(ValueError, match="returned no gradient for parameter 'kernel' of module '0'"):
        collected(model, rows())


def test_gradients_of_another_shape_are_refused() -> None:
    qg.register_adapter(Affine, Misshapen)
    with pytest.raises(
        ValueError, match=r"\[samples, 3, 5\] for parameter 'kernel' .* expected \[samples, 5, 3\]"
    ):
        collected(Affine().double(), rows())


@pytest.mark.wrong_types
def test_a_name_that_is_no_tuple_is_refused() -> None:
    class Single(AffineAdapter):
        parameters = "gamma"  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"Write \('gamma',\)"):
        qg.register_adapter(Affine, Single)


def test_a_torch_layer_with_a_further_parameter_is_replayed() -> None:
    """A built-in adapter steps back for what a user has made of its layer, and the gradients are right."""

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)
            self.scale = nn.Parameter(torch.randn(3))

    assert_equals_loop(Apply(lambda m, x: m.a(x) * m.a.scale, a=Scaled()).double(), rows())
