"""The configs of the papers have the papers' hyper-parameters, and each trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import Config, load_config, parse_config
from quietgrad.lab.run.methods import uncalibrated
from quietgrad.lab.run.presets import with_method
from quietgrad.lab.run.setup import set_up
from quietgrad.lab.run.shipped_configs import shipped_configs
from quietgrad.lab.run.train import losses_of
from tests.lab.test_configs import stand_in

GEP = {"training.batch": 1000, "training.lr": 0.1, "training.momentum": 0.9, "training.weight_decay": 1e-4,
       "training.schedule": "halfway", "data.public": 2000, "averaging.decay": 0.0}  # fmt: skip
WIDE = {"training.batch": 1000, "training.lr": 0.1, "training.momentum": 0.9, "training.weight_decay": 5e-4,
        "training.epochs": 200, "training.drops": (0.3, 0.6, 0.8), "training.drop_factor": 0.2,
        "model.name": "wrn_28_4",
        "privacy.epsilon": 8.0, "privacy.delta": 1e-5, "averaging.decay": 0.0}  # fmt: skip
PDP = {"data.private": 10_000, "data.public": 100, "data.public_labels": True, "training.batch": 250,
       "training.epochs": 30, "method.clip": 1.0, "model.name": "tanh_cnn", "averaging.decay": 0.0}  # fmt: skip
END_TO_END = {
    "training.batch": 1000,
    "training.lr": 1.0,
    "model.name": "end_to_end_cnn",
    "averaging.decay": 0.0,
}
JAX = {"training.batch": 4096, "training.lr": 2.0, "augment.views": 16, "method.clip": 1.0, "privacy.epsilon": 4.0,
       "averaging.decay": 0.9999, "model.standardise": True}  # fmt: skip


def cooling(rate: float, epochs: int) -> dict[str, Any]:
    return {"schedule": "Cooling", "rate": rate, "epochs": epochs}


PAPERS: dict[str, dict[str, Any]] = {
    "gep_mnist_eps2": GEP | {"method.clip": 10.0, "method.residual_clip": 2.0, "training.epochs": 50,
                             "privacy.delta": 1e-5, "method.rank": 500},
    "gep_cifar10_eps2": GEP | {"method.clip": 10.0, "method.residual_clip": 2.0, "training.epochs": 50},
    "gep_cifar10_eps8": GEP | {"method.clip": 10.0, "method.residual_clip": 2.0, "training.epochs": 200,
                               "method.rank": 1000, "method.groups": "modules", "model.name": "resnet20"},
    "gep_svhn_eps8": GEP | {"training.epochs": 20, "privacy.delta": 1e-6, "data.name": "svhn-extended"},
    "biased_gep_cifar10_eps8": GEP | {"method.name": "biased_gep", "method.clip": 10.0, "training.epochs": 200},
    "resnet20_cifar10_eps8": GEP | {"method.name": "dp_sgd", "method.clip": 10.0, "training.epochs": 200},
    "gep_linear_cifar10_eps2": {"method.rank": 200, "data.public": 500, "training.optimizer": "adam",
                                "method.clip": 0.1, "method.residual_clip": 0.02},
    "rgp_cifar10_eps8": WIDE | {"method.rank": 16, "method.release": "paper"},
    "rgp_random_cifar10_eps8": WIDE | {"method.name": "rgp_random"},
    "power_sgd_cifar10_eps8": WIDE | {"method.name": "dp_power_sgd"},
    "dp_sgd_wrn_28_4_cifar10_eps8": WIDE | {"method.name": "dp_sgd"},
    "rgp_svhn_eps8": {"privacy.delta": 1e-6, "training.epochs": 160, "training.lr": 0.01},
    "rgp_bert_sst2_eps8": {"training.batch": 500, "training.epochs": 50, "method.rank": 8, "training.warmup": 0.1,
                           "model.width": 768, "model.depth": 12, "privacy.delta": 1e-5, "averaging.decay": 0.0},
    "pdp_sgd_mnist_sigma10": PDP | {"privacy.noise_multiplier": 10.0, "training.lr": 0.2, "method.rank": 50},
    "pdp_sgd_mnist_sigma18": PDP | {"privacy.noise_multiplier": 18.0, "training.lr": 0.1, "method.rank": 50},
    "dp_sgd_mnist_sigma18": PDP | {"privacy.noise_multiplier": 18.0, "training.lr": 0.05},
    "pdp_sgd_fashion_mnist_sigma10": PDP | {"training.lr": 0.02, "method.rank": 70, "method.start_step": 14 * 40},
    "rpdp_sgd_fashion_mnist_sigma10": PDP | {"method.rank": 800, "method.start_step": 14 * 40},
    "dp_sgd_fashion_mnist_sigma10": PDP | {"training.lr": 0.01},
    "random_freeze_cifar10_eps3": {"method.freeze": cooling(0.6, 80), "training.epochs": 80, "training.batch": 8000,
                                   "training.lr": 4.0, "training.momentum": 0.9, "method.clip": 0.1,
                                   "averaging.decay": 0.0},
    "end_to_end_cifar10_eps3": END_TO_END | {"training.epochs": 40, "training.momentum": 0.9, "method.clip": 0.1},
    "end_to_end_adjusted_cifar10_eps3": END_TO_END | {"training.epochs": 40, "training.momentum": 0.0,
                                                      "method.clip": 1.0},
    "random_freeze_end_to_end_cifar10_eps3": END_TO_END | {"training.epochs": 60, "method.freeze": cooling(0.9, 40),
                                                           "training.momentum": 0.0, "method.clip": 1.0},
    "random_freeze_end_to_end_cifar10_eps753": END_TO_END | {"training.epochs": 100, "privacy.epsilon": 7.53,
                                                             "method.freeze": cooling(0.9, 80)},
    "ranked_freeze_end_to_end_cifar10_eps3": END_TO_END | {"training.epochs": 60, "method.freeze": cooling(0.9, 40)},
    "gep_random_freeze_cifar10_eps8": GEP | {"method.clip": 5.0, "method.residual_clip": 2.0, "method.rank": 1000,
                                             "method.within": {"mask": "random", "freeze": cooling(0.4, 200)}},
    "gip_mnist_eps2": {"method.keep": {"schedule": "Linear", "start": 1.0, "end": 0.1, "length": 29},
                       "method.index_share": 0.01, "method.group_size": 256, "averaging.decay": 0.0},
    "gip_wrn_16_4_cifar10_eps4": JAX | {"data.private": 45_000, "method.index_share": 0.01},
    "random_k_wrn_16_4_cifar10_eps4": JAX | {"method.name": "random_k"},
    "gip_wrn_16_4_svhn_eps4": JAX | {"data.private": 68_000, "data.name": "svhn"},
}  # fmt: skip
"""config → section.key → the paper's value."""

SMALLER = {  # three steps of the paper's networks would take minutes
    "wrn_28_4": ("model.name=wrn_16_4",),
    "bert": ("model.width=32", "model.depth=1", "model.heads=2"),
}
RECORDS = 24


@pytest.mark.parametrize("name", PAPERS)
def test_a_config_has_its_papers_hyper_parameters(name: str) -> None:
    plain = load_config(Path(name)).model_dump()
    found = {key: plain[key.split(".")[0]].get(key.split(".")[1]) for key in PAPERS[name]}
    assert found == PAPERS[name]


def tiny(name: str) -> tuple[Config, Parts]:
    """The config on 24 random records of its shape, with the noise fixed: calibration is tested elsewhere."""
    config = load_config(Path(name))
    config = load_config(Path(name), [*SMALLER.get(config.model.name, ()), "privacy.noise_multiplier=1.0"])
    few = stand_in(config)
    inputs, labels = (torch.cat([tensor] * (RECORDS // 6)) for tensor in few.private.tensors)
    private = TensorDataset(inputs, labels)
    shown = private.tensors if config.data.public_labels else private.tensors[:1]
    public = TensorDataset(
        *(tensor.clone() for tensor in shown)
    )  # the private records themselves are refused
    parts = Parts(private=private, public=public, test=few.test, num_classes=few.num_classes,
                  input_shape=few.input_shape, record={})  # fmt: skip
    # The config's own number of epochs, so that its schedules fit.
    training = config.training.model_dump() | {"batch": 4, "micro_batch": 4}
    method = config.method.model_dump(exclude_none=True)
    if "gep" in config.method.name or "pdp" in config.method.name:  # no more directions than public records
        method["rank"] = 10
    augment = config.augment.model_dump() | {"views": min(2, config.augment.views)}
    return parse_config(config.plain() | {"training": training, "method": method, "augment": augment}), parts


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_configs() if name in PAPERS])
def test_a_papers_config_trains_three_steps(name: str) -> None:
    config, parts = tiny(name)
    if config.model.name == "bert":
        pytest.importorskip("transformers")
    setup = set_up(config, parts=parts)
    if config.method.name == "gip":
        config = parse_config(
            config.plain() | {"method": config.method.model_dump(exclude_none=True) | {"theta": 1e-3}}
        )
    mechanism = uncalibrated(config.method, parts, setup.model, setup.batches).with_noise(1.0)
    before = [p.detach().clone() for p in setup.model.parameters()]
    with qg.Privatizer(setup.model, mechanism, setup.batches) as private:
        for step, batch in enumerate(setup.batches, start=1):
            for x, y in batch.split(4):
                private.backward(losses_of(setup.model, x, y, config))
            private.release()
            setup.update()
            if step == 3:
                break
        assert private.step == 3
    after = list(setup.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.isfinite().all() for p in after)


def test_another_method_name_takes_the_old_options_with_it() -> None:
    config = load_config(Path("gep_cifar10_eps8"), ["method.clip=1.0", "method.name=dp_sgd"])
    assert config.method.model_dump(exclude_none=True) == {"name": "dp_sgd", "clip": 1.0}
    same = load_config(Path("gep_cifar10_eps8"), ["method.name=gep"])
    assert same.method.options["rank"] == 1000


def test_sigma_and_epsilon_replace_each_other() -> None:
    plain = load_config(Path("rgp_cifar10_eps8"), ["privacy.noise_multiplier=0"])
    assert plain.privacy.epsilon is None
    assert load_config(Path("pdp_sgd_mnist_sigma10"), ["privacy.epsilon=2"]).privacy.noise_multiplier is None


def test_frozen_layers_are_not_trained() -> None:
    config, parts = tiny("end_to_end_adjusted_cifar10_eps3")
    head = load_config(
        Path("end_to_end_adjusted_cifar10_eps3"), ['model.frozen=["!18.*"]', "training.batch=4"]
    )
    names = [n for n, p in set_up(head, parts=parts).model.named_parameters() if p.requires_grad]
    assert names == ["18.weight", "18.bias"]
    wrong = load_config(
        Path("end_to_end_adjusted_cifar10_eps3"), ['model.frozen=["nothing"]', "training.batch=4"]
    )
    with pytest.raises(LabError, match="names no parameter"):
        set_up(wrong, parts=parts)
    assert config.model.frozen == ()


def built(name: str, *changes: str) -> qg.Mechanism:
    config, parts = tiny(name)
    config = load_config(Path(name), list(changes))
    setup = set_up(load_config(Path(name), [*changes, "training.batch=4"]), parts=parts)
    return uncalibrated(config.method, parts, setup.model, setup.batches)


def test_a_mask_goes_around_any_method_and_gep_has_a_random_basis() -> None:
    masked = built("pdp_sgd_mnist_sigma10", "method.within={freeze = 0.5}")
    assert masked.name == "pdp_sgd@RandomMask"
    basis = built("gep_mnist_eps2", "method.rank=10", "method.basis=random").releases[0].representation
    assert isinstance(basis, qg.Subspace)
    assert basis.rule == "random"
    with pytest.raises(LabError, match="mask = 'random' or 'ranked'"):
        built("pdp_sgd_mnist_sigma10", "method.within={mask = 'odd', freeze = 0.5}")


def test_each_layer_can_have_its_own_rank() -> None:
    config = load_config(Path("rgp_cifar10_eps8"), ['method.rank={"stage1.*" = 2, "stage2.*" = 4}'])
    _, parts = tiny("rgp_cifar10_eps8")
    setup = set_up(
        load_config(Path("rgp_cifar10_eps8"), ["model.name=wrn_16_4", "training.batch=4"]), parts=parts
    )
    mechanism = uncalibrated(config.method, parts, setup.model, setup.batches).with_noise(1.0)
    with qg.Privatizer(setup.model, mechanism, setup.batches) as private:
        next(iter(setup.batches))
        (release,) = private.explain().releases
    everything = sum(p.numel() for p in setup.model.parameters())
    assert release.dimension < everything
    assert qg.methods.rgp(rank={"a": 2}).describe() != qg.methods.rgp(rank={"a": 3}).describe()


def test_a_preset_brings_its_whole_recipe() -> None:
    base = load_config(
        Path("gep_linear_cifar10_eps2"), ["training.schedule=cosine", "training.weight_decay=0.1"]
    )
    other = with_method(base, "dp_sgd", 2.0)
    assert (other.training.optimizer, other.training.lr) == ("sgd", 1.0)
    assert (other.training.schedule, other.training.weight_decay) == ("constant", 0.0)
    assert other.training.epochs == base.training.epochs
    assert with_method(base, "gep", 2.0).training == base.training


def test_learning_rates_drop_and_warm_up() -> None:
    config, parts = tiny("end_to_end_adjusted_cifar10_eps3")
    training = config.training.model_dump() | {"epochs": 10, "batch": 24, "lr": 1.0, "schedule": "drops", "warmup": 0.2,
                                               "drops": [0.5], "drop_factor": 0.1}  # fmt: skip
    setup = set_up(parse_config(config.plain() | {"training": training}), parts=parts)
    rates = []
    for _ in range(10):
        rates.append(setup.scheduler.get_last_lr()[0])
        setup.optimizer.step()
        setup.scheduler.step()
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.1])
