"""The two ImageNet networks: shapes, weights under other names, TensorFlow's padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from quietgrad.features.mobile_nets import DESIGNS, MobileNet, _LatePadded


@pytest.mark.parametrize("design", DESIGNS)
def test_images_of_any_size_become_1280_features(design: str) -> None:
    network = MobileNet(design, side=64).eval()
    assert network(torch.rand(2, 3, 20, 24)).shape == (2, 1280)
    parameters = sum(p.numel() for p in network.parameters())
    assert parameters == {"mobilenet_v2": 2_223_872, "efficientnet_lite0": 3_371_008}[design]


def test_weights_under_other_names_are_loaded_in_their_order() -> None:
    first, second = MobileNet("mobilenet_v2", 32), MobileNet("mobilenet_v2", 32)
    renamed = {f"features.{index}": value for index, value in enumerate(first.state_dict().values())}
    second.load_in_order({**renamed, "classifier.weight": torch.zeros(10, 1280)})
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(first.eval()(images), second.eval()(images))
    with pytest.raises(ValueError, match="another network"):
        second.load_in_order(MobileNet("efficientnet_lite0", 32).state_dict())


def test_late_padding_puts_the_odd_zero_below_and_to_the_right() -> None:
    layer = _LatePadded(1, 1, 3, stride=2, bias=False)
    x = torch.rand(1, 1, 4, 5)
    expected = F.conv2d(F.pad(x, (1, 1, 0, 1)), layer.weight, stride=2)
    torch.testing.assert_close(layer(x), expected)
