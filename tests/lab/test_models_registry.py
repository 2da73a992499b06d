"""Models by name: the papers' parameter counts, fit for private training, and errors that name the nearest model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietgrad.lab.models import MODELS, build

GREY, COLOUR, TOKENS, FEATURES = (1, 28, 28), (3, 32, 32), (64,), (243, 8, 8)
COUNTS: list[tuple[str, tuple[int, ...], dict[str, object], int]] = [
    ("tanh_cnn", GREY, {}, 26_010),
    ("end_to_end_cnn", COLOUR, {}, 550_570),
    ("gep_cnn", GREY, {}, 28_938),
    ("resnet20", COLOUR, {}, 272_474),
    ("resnet20", COLOUR, {"shortcut": "pad"}, 269_722),
    ("resnet20", COLOUR, {"shortcut": "pad", "affine": False}, 268_346),
    ("resnet20", COLOUR, {"standardise": True}, 272_474),
    ("wrn_16_4", COLOUR, {}, 2_748_890),
    ("wrn_28_4", COLOUR, {"standardise": True}, 5_849_050),
    ("linear", GREY, {}, 7_850),
    ("mlp", GREY, {"hidden": [1024, 1024]}, 1_863_690),
    ("scatter_linear", COLOUR, {}, 155_530),
    ("scatter_cnn", COLOUR, {}, 187_210),
    ("feature_linear", FEATURES, {}, 155_530),
    ("feature_cnn", FEATURES, {}, 187_210),
    ("transformer", TOKENS, {"vocabulary": 8_000, "width": 256, "depth": 4}, 5_226_506),
    ("bert", TOKENS, {}, 1_471_626),
]
CASES = [case[:3] for case in COUNTS]
IDS = [f"{name}-{index}" for index, (name, *_) in enumerate(COUNTS)]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def some_inputs(shape: tuple[int, ...], rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if shape == TOKENS:
        ids = torch.randint(1, 8_000, (rows, *shape), generator=generator)
        ids[0, 10:] = 0
        return ids
    return torch.randn(rows, *shape, generator=generator)


def test_every_model_is_tried_here() -> None:
    assert {name for name, *_ in COUNTS} == set(MODELS)


@pytest.mark.parametrize(("name", "shape", "options", "parameters"), COUNTS, ids=IDS)
def test_parameter_counts(
    name: str, shape: tuple[int, ...], options: dict[str, object], parameters: int
) -> None:
    assert count(build(name, shape, 10, **options)) == parameters


@pytest.mark.parametrize(("name", "shape", "options"), CASES, ids=IDS)
def test_samples_do_not_touch_each_other(
    name: str, shape: tuple[int, ...], options: dict[str, object]
) -> None:
    model = build(name, shape, 10, **options).train()
    x = some_inputs(shape, 3)
    together = model(x)
    assert together.shape == (3, 10)
    alone = torch.cat([model(row[None]) for row in x])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "shape", "options"), CASES, ids=IDS)
def test_every_parameter_is_used_and_an_empty_batch_passes(
    name: str, shape: tuple[int, ...], options: dict[str, object]
) -> None:
    model = build(name, shape, 10, **options)
    model(some_inputs(shape, 2)).square().sum().backward()
    unused = [label for label, parameter in model.named_parameters() if parameter.grad is None]
    assert not unused
    assert model(some_inputs(shape, 1)[:0]).shape == (0, 10)


@pytest.mark.parametrize("name", ["resnet20", "wrn_16_4", "wrn_28_4"])
def test_residual_networks_have_the_stages_that_methods_group_by(name: str) -> None:
    children = [child for child, _ in build(name, COLOUR, 10).named_children()]
    assert children == ["stem", "stage1", "stage2", "stage3", "head"]


def test_standardised_filters_have_mean_zero_and_variance_one_over_fan_in() -> None:
    from quietgrad.lab.models.standardised import StandardisedConv2d

    conv = StandardisedConv2d(4, 6, 3, bias=False)
    with torch.no_grad():
        conv.weight.mul_(7).add_(3)
        taps = conv(torch.eye(36).view(36, 4, 3, 3))[:, :, 0, 0].T  # one-pixel images read the filters off
    assert taps.shape == (6, 36)
    torch.testing.assert_close(taps.mean(1), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(taps.square().sum(1), torch.ones(6), atol=1e-3, rtol=0)


def test_padding_tokens_change_nothing() -> None:
    torch.manual_seed(0)
    model = build("transformer", TOKENS, 2)
    ids = torch.zeros(2, 64, dtype=torch.int64)
    ids[:, :5] = torch.arange(1, 6)
    with torch.no_grad():
        before = model(ids)
        model.get_parameter("embed.weight")[0] = 5 * torch.randn(128)  # the padding's embedding
        after = model(ids)
    torch.testing.assert_close(before, after, atol=1e-5, rtol=1e-4)


def test_a_text_without_words_gives_finite_logits() -> None:
    assert build("transformer", TOKENS, 2)(torch.zeros(1, 64, dtype=torch.int64)).isfinite().all()


def test_a_pretrained_encoder_is_loaded_from_a_folder(tmp_path: Path) -> None:
    first = build("bert", TOKENS, 3)
    encoder: Any = first.get_submodule("encoder")
    encoder.save_pretrained(str(tmp_path))
    second = build("bert", TOKENS, 3, pretrained=str(tmp_path)).eval()
    x = some_inputs(TOKENS, 2)
    torch.testing.assert_close(first.eval()(x), second(x))


def test_a_pretrained_model_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    with pytest.raises(ValueError, match=r"holds a model of type 'roberta'. Take the folder of a BERT"):
        build("bert", TOKENS, 2, pretrained=str(tmp_path))


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"Unknown model='resnet' .did you mean 'resnet20'.*Known: "):
        build("resnet", COLOUR, 10)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("tanh_cnn", GREY, {"width": 3}, "Unknown option 'width' of model 'tanh_cnn'. Known: none"),
        ("mlp", GREY, {"hiden": 3}, r"Unknown option 'hiden' of model 'mlp' .did you mean 'hidden'"),
        ("mlp", GREY, {"hidden": []}, "Use model 'linear' for none"),
        ("tanh_cnn", (1, 8, 8), {}, r"at least 16x16, got input_shape=\(1, 8, 8\)"),
        ("resnet20", (784,), {}, r"takes images .* got input_shape=\(784,\)"),
        ("resnet20", COLOUR, {"shortcut": "none"}, "Expected shortcut='conv' or 'pad', got 'none'"),
        ("resnet20", COLOUR, {"groups": 5}, "groups=5 does not divide 16 channels"),
        ("scatter_cnn", (1, 30, 30), {}, "multiples of 4, at least 8, got 30x30"),
        ("transformer", GREY, {}, r"takes token sequences .* got input_shape=\(1, 28, 28\)"),
        ("transformer", TOKENS, {"heads": 3}, "heads=3 does not divide width=128"),
        ("bert", TOKENS, {"heads": 3}, "heads=3 does not divide width=128"),
        ("bert", TOKENS, {"pretrained": "no-such-folder"}, "pretrained='no-such-folder' is not a folder"),
    ],
)
def test_unfit_options_are_refused(
    name: str, shape: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, shape, 10, **options)


def test_a_single_class_is_refused() -> None:
    with pytest.raises(ValueError, match="num_classes >= 2, got 1"):
        build("tanh_cnn", GREY, 1)


def test_bert_without_transformers_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"needs the package transformers. Install it: pip install"):
        build("bert", TOKENS, 2)
