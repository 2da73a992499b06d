"""Every config that ships is valid, names things that exist, and builds on data of the shape it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import Parts
from quietgrad.lab.data.catalogue import EMBEDDED, READERS
from quietgrad.lab.models import build
from quietgrad.lab.run.config import Config, load_config, parse_config, parse_section
from quietgrad.lab.run.config_sections import MethodConfig
from quietgrad.lab.run.linear_probe import LinearProbeOptions
from quietgrad.lab.run.methods import uncalibrated
from quietgrad.lab.run.presets import QUIET

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
SHAPES = {
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "embedded": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "svhn": ((3, 32, 32), 10),
    "svhn-extended": ((3, 32, 32), 10),
    "sst2": ((64,), 2),
}


def stand_in(config: Config) -> Parts:
    """A few random inputs of the data set's shape."""
    shape, classes = SHAPES[config.data.name]
    if config.data.features == "scatter":
        shape = (81 * shape[0], shape[1] // 4, shape[2] // 4)
    tokens = len(shape) == 1
    inputs = torch.randint(100, (6, *shape)) if tokens else torch.randn(6, *shape)
    labels = torch.arange(6) % classes
    examples = TensorDataset(inputs, labels)
    public = examples if config.data.public_labels else TensorDataset(inputs)
    return Parts(
        private=examples, public=public, test=examples, num_classes=classes, input_shape=shape, record={}
    )


def test_there_are_configs_for_every_paper() -> None:
    names = {path.name for path in CONFIGS}
    for start in ("gep_", "pdp_sgd_", "rgp_", "random_freeze_", "gip_", "dp_sgd_"):
        assert any(name.startswith(start) for name in names), start


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_parses_builds_and_survives_being_written_back(path: Path) -> None:
    config = load_config(path)
    assert config.data.name in (EMBEDDED, *READERS)
    assert config.data.public_from in (None, *READERS)
    assert parse_config(load_config_text(tomli_w.dumps(config.plain()))) == config
    if config.method.name == QUIET:  # it makes features and model of its own
        assert isinstance(
            parse_section(LinearProbeOptions, config.method.options, "method"), LinearProbeOptions
        )
        return
    parts = stand_in(config)
    model = build(config.model.name, parts.input_shape, parts.num_classes, **config.model.options)
    assert model(parts.test.tensors[0][:2]).shape == (2, parts.num_classes)
    if "gip" not in config.method.name:  # gip plans its indices over the whole data set
        steps = int(config.training.epochs * 40)
        batches = qg.PoissonBatches(parts.private, rate=1 / 40, steps=steps)
        mechanism = uncalibrated(config.method, parts, model, batches)
        assert mechanism.name.partition("@")[0] == config.method.name


def load_config_text(text: str) -> dict[str, object]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def test_gip_config_builds_on_a_small_plan() -> None:
    config = load_config(next(path for path in CONFIGS if path.stem.startswith("gip_")))
    parts = stand_in(config)
    model = build("linear", parts.input_shape, parts.num_classes)
    batches = qg.PoissonBatches(parts.private, rate=1 / 2, steps=60)
    assert uncalibrated(config.method, parts, model, batches).name == "gip"


def test_a_damping_that_is_left_out_is_left_to_the_run() -> None:
    parts = stand_in(load_config(next(path for path in CONFIGS if path.stem.startswith("gip_"))))
    model = build("linear", parts.input_shape, parts.num_classes)
    batches = qg.PoissonBatches(parts.private, rate=1 / 2, steps=60)
    for options, damping in (({}, None), ({"damping": 3.0}, 3.0)):
        method = MethodConfig.model_validate({"name": "preconditioned", **options})
        scaled = uncalibrated(method, parts, model, batches).releases[0].representation
        assert isinstance(scaled, qg.Preconditioned)
        assert scaled.damping == damping
