"""Models that are refused before training, each with its name and what to do instead."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from quietgrad._errors import PrivacyError

NORMS = (_BatchNorm, _InstanceNorm)
"""What `check_norm` may refuse: asked before every forward, since a module's mode may change at any time."""

WRAPPERS = {
    "DistributedDataParallel": "pass the bare module and give the Privatizer a reducer: it all-reduces private sums",
    "DataParallel": "pass the bare module",
    "FullyShardedDataParallel": "use torch.distributed.fsdp.fully_shard and reducer=qg.distributed.Sharded()",
    "FSDPModule": "give the Privatizer reducer=qg.distributed.Sharded(), which adds up shards",
    "ScriptModule": "pass the Python module: a scripted one runs no hooks",
    "GradSampleModule": "pass the bare module (its ._module)",
}


def validate(model: nn.Module, *, sharded: bool = False) -> None:
    """Refuse what cannot be trained privately.

    Args:
        sharded: whether modules under `fully_shard` are welcome.
    """
    for name, module in model.named_modules():
        place = f"module {name!r}" if name else "the model"
        for kind in type(module).__mro__:
            if kind.__name__ in WRAPPERS and not (sharded and kind.__name__ == "FSDPModule"):
                raise ValueError(f"{place} is a {kind.__name__}: {WRAPPERS[kind.__name__]}.")
        check_compiled(module, place)
        check_norm(module, place)
        check_embedding(module, place)
    check_device(model)
    for name, parameter in model.named_parameters():
        if not sharded and type(parameter.data).__name__ == "DTensor":
            raise ValueError(
                f"Parameter {name!r} is a DTensor: a tensor parallel plan (parallelize_module) splits the layer over "
                "ranks, and a record's norm with it, which is not supported. Shard the model by fully_shard with "
                "reducer=qg.distributed.Sharded(), or train it whole with AllReduce()."
            )
        if is_lazy(parameter):
            raise ValueError(
                f"Parameter {name!r} is not initialised yet. Run one forward before making it private."
            )
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"Parameter {name!r} is {str(parameter.dtype)[6:]}, and per-sample gradients are real numbers: its "
                "imaginary part would never be trained. Store real and imaginary part as two real parameters "
                "(torch.view_as_complex), or freeze it."
            )


def check_device(model: nn.Module) -> None:
    """Refuse trained parameters on several devices, or on one that has no float64."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad and not is_lazy(p)}
    first = next(iter(trained), None)
    if first is None:
        return
    device = trained[first].device
    other = next((name for name, p in trained.items() if p.device != device), None)
    if other is not None:
        raise ValueError(
            f"Parameter {first!r} is on {device} and {other!r} on {trained[other].device}: norms add up over all "
            "parameters. Move the model to one device, or freeze one of the two parts."
        )
    if device.type == "mps":
        raise ValueError(
            f"The model is on {device}, which has no float64: norms and sums would be rounded by more than the "
            "guarantee allows. Move it to the CPU or to a CUDA device."
        )


def check_norm(module: nn.Module, place: str) -> None:
    """Refuse normalisations that mix samples or remember them."""
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        raise PrivacyError(
            f"{place} is a {type(module).__name__} in training mode: it mixes the samples of a batch, so no "
            "sample has a gradient of its own. Replace it by GroupNorm with quietgrad.fix(model), or freeze "
            "it with .eval()."
        )
    if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
        raise PrivacyError(
            f"{place} is a {type(module).__name__} that tracks running statistics of private data. Build it with "
            "track_running_stats=False, or call quietgrad.fix(model)."
        )


def check_compiled(module: nn.Module, place: str) -> None:
    """Refuse compiled modules with trained parameters; a frozen one is an operation like any other."""
    compiled = any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__)
    if not compiled and module._compiled_call_impl is None:
        return
    trained = next((name for name, p in module.named_parameters() if p.requires_grad), None)
    if trained is not None:
        raise ValueError(
            f"{place} is compiled and trains {trained.removeprefix('_orig_mod.')!r}: its backward is one function, in "
            "which the gradients at the outputs of its layers never appear, so that no sample's share of a weight's "
            "gradient can be taken. Pass the model uncompiled, and Privatizer(..., compile=True) to let it be compiled."
        )


def check_embedding(module: nn.Module, place: str) -> None:
    """Refuse embeddings whose options read the whole batch."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return
    if module.max_norm is not None:
        raise PrivacyError(
            f"{place} has max_norm: it rewrites the rows that private data reads. Use max_norm=None."
        )
    if module.scale_grad_by_freq:
        raise PrivacyError(f"{place} has scale_grad_by_freq: it divides by counts over the batch. Use False.")
