"""Models by name: parameter counts of the papers, and errors that name the nearest model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quietgrad.lab.models import build


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_small_tanh_cnn_has_the_papers_size() -> None:
    model = build("tanh_cnn", (1, 28, 28), 10)
    assert count(model) == 26_010
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"Unknown model='tanh_cn' .did you mean 'tanh_cnn'.*Known: "):
        build("tanh_cn", (1, 28, 28), 10)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown option 'width' of model 'tanh_cnn'"):
        build("tanh_cnn", (1, 28, 28), 10, width=3)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 16x16, got input_shape=.1, 8, 8."):
        build("tanh_cnn", (1, 8, 8), 10)


def test_a_single_class_is_refused() -> None:
    with pytest.raises(ValueError, match="num_classes >= 2, got 1"):
        build("tanh_cnn", (1, 28, 28), 1)
