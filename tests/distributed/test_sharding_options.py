"""The options of `fully_shard` and accelerate's own sharding; plans that split layers otherwise are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import quietgrad as qg
from quietgrad._sampling.poisson import ReplayedSampler
from tests.distributed.launch import launch, values
from tests.distributed.shard_models import RECORDS, Scripted, build, data, losses_of, shard

DRAW = list(range(9))
FIXED: dict[str, Any] = {"deterministic": True, "public_seed": 7}
MECHANISM = qg.methods.dp_sgd(clip=0.5).with_noise(0.4)
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
Losses = Callable[[nn.Module, Any], Tensor]


def losses_in_half(model: nn.Module, batch: Any) -> Tensor:
    return losses_of("mlp", model, [batch[0].bfloat16(), batch[1]])


def losses(model: nn.Module, batch: Any) -> Tensor:
    return losses_of("mlp", model, batch)


def by_accelerate(model: nn.Module) -> nn.Module:
    """As `Accelerator.prepare` does with its FSDP2 plugin, which it switches off on CPUs."""
    utils = pytest.importorskip("accelerate.utils.fsdp_utils")
    plugin = SimpleNamespace(
        set_auto_wrap_policy=lambda _: None,
        auto_wrap_policy=None,
        reshard_after_forward=True,
        cpu_offload=None,
        mixed_precision_policy=None,
        ignored_modules=None,
        cpu_ram_efficient_loading=False,
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        device=torch.device("cpu"),
        mixed_precision="no",
        is_main_process=True,
        unwrap_model=lambda model: model,
    )
    sharded: nn.Module = utils.fsdp2_prepare_model(accelerator, model)
    return sharded


SHARDINGS: dict[str, Callable[[nn.Module], Any]] = {
    "blocks": shard,
    "the whole": fully_shard,
    "gathered until the backward": lambda model: fully_shard(model, reshard_after_forward=False),
    "half precision": lambda model: fully_shard(model, mp_policy=HALF),
    "accelerate": by_accelerate,
}


def step(private: qg.Privatizer, batches: Any, model: nn.Module, losses: Losses) -> dict[str, Tensor]:
    for part in next(iter(batches)).split(64):
        private.backward(losses(model, part))
    private.release()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in grads.items()}


def all_shardings(_: int) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, apply in SHARDINGS.items():
        model = build("mlp")
        source = Scripted([p.shape for p in model.parameters()], 2)
        model = apply(model) or model
        batches = qg.PoissonBatches.replay(data("mlp"), [DRAW], rate=0.25)
        options = {**FIXED, "noise_source": source, "reducer": qg.distributed.Sharded()}
        with qg.Privatizer(model, MECHANISM, batches, **options) as private:
            found[name] = step(
                private, batches, model, losses_in_half if name == "half precision" else losses
            )
    return found


def alone(*, half: bool) -> dict[str, Tensor]:
    model, records = build("mlp"), data("mlp")
    source = Scripted([p.shape for p in model.parameters()])
    model = model.bfloat16() if half else model
    sampler = ReplayedSampler(RECORDS, [DRAW], rate=0.25)
    with qg.Privatizer(model, MECHANISM, sampler, **FIXED, noise_source=source) as private:
        for rows in sampler:
            for rank in range(2):
                private.backward((losses_in_half if half else losses)(model, records[rows[rank::2]]))
            private.release()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def sharded() -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = values(launch(2, all_shardings))[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDINGS)
def test_every_option_releases_the_bits_of_one_process(
    sharded: dict[str, dict[str, Tensor]], name: str
) -> None:
    half = name == "half precision"
    expected = alone(half=half)
    assert expected.keys() == sharded[name].keys()
    for key, theirs in expected.items():
        mine = sharded[name][key]
        assert mine.dtype == torch.float32  # weights and releases stay in float32
        assert torch.equal(mine.bfloat16() if half else mine, theirs), key


# ---- refused by name -----------------------------------------------------------------------------------------


def tensor_parallel(model: nn.Module) -> None:
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def replicas(model: nn.Module) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards")))


def both_sides() -> qg.Mechanism:
    return qg.methods.preconditioned(lambda model: model(torch.ones(4, 6)).sum(1), sides="both")


Reducers = Callable[[], qg.distributed.Reducer]
REFUSED: dict[str, tuple[Callable[[nn.Module], Any], Reducers, Callable[[], qg.Mechanism], str]] = {
    "tensor parallel": (
        tensor_parallel,
        qg.distributed.AllReduce,
        qg.methods.dp_sgd,
        "parallelize_module.*not supported",
    ),
    "tensor parallel, sharded": (
        tensor_parallel,
        qg.distributed.Sharded,
        qg.methods.dp_sgd,
        "fully_shard was not applied",
    ),
    "replicas": (replicas, qg.distributed.Sharded, qg.methods.dp_sgd, "replicas or shard_placement_fn"),
    "fully_shard without Sharded": (
        fully_shard,
        qg.distributed.AllReduce,
        qg.methods.dp_sgd,
        "FSDPModule: give the Privatizer reducer=qg.distributed.Sharded",
    ),
    "both sides": (fully_shard, qg.distributed.Sharded, both_sides, 'Leave sides="both" out'),
}


def refusals(_: int) -> dict[str, str]:
    found = {}
    for name, (prepare, reducer, method, _message) in REFUSED.items():
        model, batches = build("mlp"), qg.PoissonBatches(data("mlp"), rate=0.5, steps=2)
        prepare(model)
        try:
            with qg.Privatizer(model, method().with_noise(1.0), batches, reducer=reducer()) as private:
                step(private, batches, model, losses)
        except ValueError as error:
            found[name] = str(error)
    return found


@pytest.mark.slow
def test_what_splits_layers_otherwise_is_refused_by_name_on_all_ranks() -> None:

    for rank in values(launch(2, refusals)):
        assert rank.keys() == REFUSED.keys()
        for name, (*_, message) in REFUSED.items():
            assert re.search(message, rank[name]), rank[name]
