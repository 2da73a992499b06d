"""Probing finds the owner of every entry at any scale, and never gives an entry of two samples to one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from quietgrad._capture import probing
from quietgrad._capture.adapters.fallback import FallbackAdapter
from quietgrad._capture.call import Call, Output, Unit
from quietgrad._capture.layout import Layout, Owners
from quietgrad._capture.mask_probing import MaskCode, probe_masks
from quietgrad._capture.output_gradients import OutputGradient
from quietgrad._capture.probing import SampleCode, matches_layout, probe_layouts

WIDTH = 3


def output_gradient(losses: Tensor, z: Tensor) -> OutputGradient:
    """The gradient at z, as if a module had returned it."""
    output = Output(0, get_gradient_edge(z), z.shape)
    call = Call(
        unit=Unit("m", nn.Identity(), FallbackAdapter(), {}), index=0, serial=0, args=(), kwargs={}, outputs=[output],
        results=[], extras=[], input_nodes=[], autocast=(False, torch.bfloat16), rng=None, versions=[],
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(losses.sum(), z, retain_graph=True)
    return OutputGradient(call, output, gradient)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def probe(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[OutputGradient, bool]:
    """The gradient with the layout that was found, and whether it was said to belong to several samples."""
    z = z.requires_grad_() * 1.0
    losses = loss(z)
    gradient = output_gradient(losses, z)
    return gradient, bool(probe_layouts(losses, [gradient]))


SCALES = [0.0, 80.0, -80.0, 86.0, -86.0]


@pytest.mark.parametrize("n", [2, 5, 61, 70])
@pytest.mark.parametrize("power", SCALES)
@pytest.mark.parametrize("back", [True, False])
def test_a_regular_layout_is_found_at_any_scale(n: int, power: float, back: bool) -> None:
    scale = torch.ones(n)
    scale[1] = math.exp(power)

    def losses(z: Tensor) -> Tensor:
        each = z.square().sum((0, 2)) * scale
        return each / scale if back else each

    for _ in range(4):
        gradient, is_mixed = probe(losses, numbers(2, n, WIDTH))
        assert gradient.layout == Layout(1)
        assert not is_mixed


@pytest.mark.parametrize("n", [2, 5, 61, 70])
@pytest.mark.parametrize("power", SCALES)
def test_the_owner_of_each_position_is_found_at_any_scale(n: int, power: float) -> None:
    owner = torch.arange(3 * n) * 7 % (3 * n) % n
    owner = owner.where(torch.arange(3 * n) > 4, n - 1)
    scale = torch.ones(n)
    scale[n - 1] = math.exp(power)

    def losses(z: Tensor) -> Tensor:
        return (z.square().sum(1).new_zeros(n).index_add(0, owner, z.square().sum(1)) * scale) / scale

    for _ in range(4):
        gradient, is_mixed = probe(losses, numbers(3 * n, WIDTH))
        assert isinstance(gradient.layout, Owners)
        assert not is_mixed
        for sample, places in enumerate(gradient.layout.places):
            # Nobody reads the feature dimension: a position here is one number.
            assert {int(place) // WIDTH for place in places if place >= 0} == set(
                (owner == sample).nonzero()[:, 0].tolist()
            )


MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "centred": lambda z: (z - z.mean(0)).pow(3).sum(1),
    "a small share": lambda z: (z + 2**-10 * z.roll(1, 0)).pow(3).sum(1),
    "all tiny": lambda z: (z - z.mean(0)).pow(3).sum(1) * 1e-34,
    "the first in all": lambda z: (z + z[:1]).pow(3).sum(1),
    "one tiny": lambda z: (z - z.mean(0)).pow(3).sum(1) * torch.tensor([1e-35] + [1.0] * (len(z) - 1)),
}


@pytest.mark.parametrize("n", [3, 5, 70])
@pytest.mark.parametrize("name", MIXED)
def test_entries_of_several_samples_are_never_given_to_one(name: str, n: int) -> None:
    for _ in range(4):
        gradient, is_mixed = probe(MIXED[name], numbers(n, WIDTH))
        assert gradient.layout is None
        assert is_mixed


@pytest.mark.parametrize("n", [2, 5, 70])
@pytest.mark.parametrize("size", [1e34, 1e-34])
def test_losses_left_out_show_a_share_of_any_size(n: int, size: float) -> None:
    z = numbers(n, WIDTH).requires_grad_() * 1.0
    losses = (z - z.mean(0)).pow(3).sum(1) * torch.tensor([size] + [1.0] * (n - 1))
    gradient = output_gradient(losses, z)
    probe_masks(losses, [gradient])
    assert gradient.layout is None


@pytest.mark.parametrize("n", [2, 3, 6, 7, 70, 300])
def test_each_sample_is_left_out_without_any_other(n: int) -> None:
    code = MaskCode(n)
    kept = torch.stack([code.kept(digit) for digit in range(code.digits)]).double()
    apart = (1 - kept).T @ kept  # [a, b]: digits that leave out a and keep b
    assert bool(((apart > 0) | torch.eye(n, dtype=torch.bool)).all())
    assert code.digits <= 2 + math.ceil(math.log2(n)) + 1


def test_a_share_below_rounding_shows_by_its_factor() -> None:
    """2⁻²³ of another sample is nothing beside the own entry, until its loss is multiplied by up to 2⁶⁰."""
    for _ in range(4):
        gradient, is_mixed = probe(lambda z: (z + 2**-23 * z.sum(0)).pow(3).sum(1), numbers(16, WIDTH))
        assert gradient.layout is None
        assert is_mixed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixing_shows_in_half_precision(dtype: torch.dtype) -> None:
    """On 0.2 every float16 gradient matched every layout: differences up to 65536 passed for rounding."""
    gradient, is_mixed = probe(lambda z: (z - z.mean(0)).pow(3).sum(1), numbers(6, WIDTH, dtype=dtype))
    assert gradient.layout is None
    assert is_mixed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layouts_are_found_in_half_precision(dtype: torch.dtype) -> None:
    gradient, is_mixed = probe(lambda z: z.pow(3).sum(0), numbers(WIDTH, 7, dtype=dtype))
    assert gradient.layout == Layout(1)
    assert not is_mixed


def test_rows_that_vanish_confirm_nothing() -> None:
    code = SampleCode(4, half=False)
    tiny = numbers(4, WIDTH) * 1e-38
    assert not matches_layout(tiny, torch.zeros_like(tiny), torch.full((4,), -30), Layout(0))
    assert matches_layout(
        numbers(4, WIDTH),
        numbers(4, WIDTH) * torch.exp2(code.exponents(0))[:, None],
        code.exponents(0),
        Layout(0),
    )


def test_two_samples_that_share_a_digit_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 62 samples on a digit has fewer values than there are samples: one digit alone confirms no layout."""

    class InOrder(SampleCode):
        def __init__(self, n: int, *, half: bool) -> None:
            super().__init__(n, half=half)
            self._number = torch.arange(n)

    def losses(z: Tensor) -> Tensor:
        mixed = z.clone()
        mixed[0] = z[0] + z[61]
        return mixed.pow(3).sum(1)

    monkeypatch.setattr(probing, "SampleCode", InOrder)
    code = InOrder(122, half=False)
    assert code.exponents(0)[0] == code.exponents(0)[61]
    gradient, is_mixed = probe(losses, numbers(122, WIDTH))
    assert gradient.layout is None
    assert is_mixed
