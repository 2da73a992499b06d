"""ScatterNet has the properties that define it, and features are computed record by record."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad.features.scattering import CHANNELS, low_pass, wavelets
from quietgrad.lab.data import Parts
from quietgrad.lab.models import ScatterNet, precompute

NET = ScatterNet(32, 32)
SIZE = (40, 40)


def images(seed: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, 1, *SIZE, generator=torch.Generator().manual_seed(seed))


def test_shapes() -> None:
    assert CHANNELS == 81
    assert NET(torch.zeros(2, 3, 32, 32)).shape == (2, 243, 8, 8)


def test_filters_are_a_frame_with_bound_one() -> None:
    """|phi|^2 + 1/2 sum (|psi(w)|^2 + |psi(-w)|^2) <= 1 at every frequency: the transform cannot expand."""
    psi = torch.cat([wavelets(SIZE, scale) for scale in (0, 1)])
    mirrored = psi.flip(1, 2).roll((1, 1), (1, 2))
    energy = low_pass(SIZE).square() + 0.5 * (psi.square() + mirrored.square()).sum(0)
    assert float(energy.max()) <= 1 + 1e-9
    assert float(energy.min()) > 0.1


def test_wavelets_have_mean_zero_and_the_window_sum_one() -> None:
    assert float(low_pass(SIZE)[0, 0]) == pytest.approx(1)
    for scale in (0, 1):
        torch.testing.assert_close(wavelets(SIZE, scale)[:, 0, 0], torch.zeros(8, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["noise", "smooth", "constant"])
def test_distances_do_not_grow(kind: str) -> None:
    x, y = images(1), images(2)
    if kind == "smooth":
        x, y = (F.avg_pool2d(F.pad(image, (3,) * 4, mode="circular"), 7, stride=1) for image in (x, y))
    if kind == "constant":
        x, y = torch.ones_like(x), torch.zeros_like(y)
    pixels = 16  # each feature stands for 4x4 of them
    grown = pixels * (NET.periodic(x) - NET.periodic(y)).square().sum((1, 2, 3))
    assert (grown <= (x - y).square().sum((1, 2, 3)) * (1 + 1e-4)).all()


def test_a_shift_of_the_image_shifts_the_features() -> None:
    x = images(3)
    shifted = NET.periodic(x.roll((4, 8), (2, 3)))
    torch.testing.assert_close(shifted, NET.periodic(x).roll((1, 2), (2, 3)), atol=1e-5, rtol=1e-4)


def test_small_shifts_change_features_less_than_pixels() -> None:
    x = images(4)
    moved = x.roll(1, 3)
    pixels = (moved - x).norm() / x.norm()
    features = (NET.periodic(moved) - NET.periodic(x)).norm() / NET.periodic(x).norm()
    assert float(features) < 0.5 * float(pixels)


def test_a_constant_image_has_only_its_mean() -> None:
    features = NET(torch.full((1, 1, 32, 32), 2.0))
    torch.testing.assert_close(features[:, 0], torch.full((1, 8, 8), 2.0))
    assert float(features[:, 1:].abs().max()) < 1e-5


@pytest.mark.parametrize("turn", range(8))
def test_a_wave_answers_in_the_channel_of_its_direction(turn: int) -> None:
    angle, frequency = math.pi * turn / 8, 0.75 * math.pi
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    wave = torch.cos(frequency * (math.cos(angle) * rows + math.sin(angle) * columns))
    first_order = NET.periodic(wave[None, None])[0, 1:9, 3:7, 3:7].mean((1, 2))
    assert int(first_order.argmax()) == turn


def test_second_order_equals_a_slow_convolution() -> None:
    x = images(5, rows=1)

    def convolved(image: Tensor, window: Tensor) -> Tensor:
        return torch.fft.ifft2(torch.fft.fft2(image.double()) * window)

    first = convolved(x[0, 0], wavelets(SIZE, 0)[3]).abs()
    second = convolved(first, wavelets(SIZE, 1)[6]).abs()
    expected = convolved(second, low_pass(SIZE)).real[::4, ::4].float()
    channel = 1 + 16 + 3 * 8 + 6
    # The fast way halves the resolution in between; what that folds over is below 5% here.
    assert float((NET.periodic(x)[0, channel] - expected).abs().max() / expected.max()) < 0.05


def make_parts() -> Parts:
    x = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return Parts(
        private=TensorDataset(x[:6], torch.arange(6) % 2),
        public=TensorDataset(x[6:6]),
        test=TensorDataset(x[6:], torch.arange(4) % 2),
        num_classes=2,
        input_shape=(1, 28, 28),
        record={"data": "made up"},
    )


def test_precomputed_features_are_the_extractors() -> None:
    parts, net = make_parts(), ScatterNet(28, 28)
    features = precompute(parts, net)
    assert features.input_shape == (81, 7, 7)
    torch.testing.assert_close(features.private.tensors[0], net(parts.private.tensors[0]))
    assert features.private.tensors[1] is parts.private.tensors[1]
    assert (len(features.public), features.record["features"]) == (0, "ScatterNet")


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_an_extractor_that_mixes_records_is_refused() -> None:
    with pytest.raises(ValueError, match="extractor=Centred gives an input other features alone"):
        precompute(make_parts(), Centred())
