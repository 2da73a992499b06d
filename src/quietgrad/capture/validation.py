"""What is refused, each with its name and what to do instead: models before training, losses before each backward."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

WRAPPERS = {
    "DistributedDataParallel": "pass the bare module and give the Privatizer a reducer: it all-reduces private sums",
    "DataParallel": "pass the bare module",
    "FullyShardedDataParallel": "pass the bare module: sharded parameters have no per-sample gradients here",
    "FSDPModule": "pass the module before fully_shard: sharded parameters have no per-sample gradients here",
    "ScriptModule": "pass the Python module: a scripted one runs no hooks",
    "GradSampleModule": "pass the bare module (its ._module)",
}

LEAST_SCALE = 256.0
"""GradScaler's scales are powers of two and begin at 65,536; a weight in a loss is rarely one this large."""


def validate(model: nn.Module) -> None:
    """Refuse what cannot be trained privately."""
    for name, module in model.named_modules():
        place = f"module {name!r}" if name else "the model"
        for kind in type(module).__mro__:
            if kind.__name__ in WRAPPERS:
                raise ValueError(f"{place} is a {kind.__name__}: {WRAPPERS[kind.__name__]}.")
        check_compiled(module, place)
        check_norm(module, place)
        check_embedding(module, place)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"Parameter {name!r} is not initialised yet. Run one forward before making it private."
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
            "gradient can be taken. Compile only parts without trained parameters, and pass the others uncompiled."
        )


def check_norm(module: nn.Module, place: str) -> None:
    """Refuse normalisations that mix samples or remember them."""
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        raise ValueError(
            f"{place} is a {type(module).__name__} in training mode: it mixes the samples of a batch, so no "
            "sample has a gradient of its own. Replace it by GroupNorm with quietgrad.fix(model), or freeze "
            "it with .eval()."
        )
    if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
        raise ValueError(
            f"{place} is a {type(module).__name__} that tracks running statistics of private data. Build it with "
            "track_running_stats=False, or call quietgrad.fix(model)."
        )


def check_embedding(module: nn.Module, place: str) -> None:
    """Refuse embeddings whose options read the whole batch."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return
    if module.max_norm is not None:
        raise ValueError(
            f"{place} has max_norm: it rewrites the rows that private data reads. Use max_norm=None."
        )
    if module.scale_grad_by_freq:
        raise ValueError(f"{place} has scale_grad_by_freq: it divides by counts over the batch. Use False.")


def check_losses(losses: Tensor) -> None:
    """Refuse anything but a differentiable vector of losses: one loss per row leaves no mean or sum to mistake."""
    if losses.dim() == 0:
        raise ValueError(
            'Expected one loss per row, got a scalar. Pass reduction="none" to the loss; the mean over the batch is '
            "taken by release(), with the constant qN."
        )
    if losses.dim() > 2 or (losses.dim() == 2 and losses.shape[1] == 0):
        raise ValueError(
            f"Expected losses of shape [n], or [n, views], got {tuple(losses.shape)}. Reduce them to one loss per row."
        )
    if len(losses) and not losses.requires_grad:
        raise ValueError("The losses do not require grad. Call the model outside torch.no_grad().")


def refuse_scaled(losses: Tensor) -> None:
    """Refuse `scaler.scale(losses)`: the last operation multiplied by a large power of two held in a tensor.

    Such losses would be clipped at the scale's size, and `scaler.step` would shrink the noise.

    Raises:
        ValueError: the losses were scaled. Decided from the scale, never from the losses.
    """
    scale = _last_factor(losses)
    if scale is not None and scale >= LEAST_SCALE and scale.hex().startswith("0x1.0000000000000p"):
        raise ValueError(
            f"The losses were multiplied by {scale:g}, as GradScaler does. Gradients are clipped as they come, so that "
            "a scale only lowers the clip, and scaler.step would divide the release by it. Pass the losses as they "
            "are, and call optimizer.step() without a scaler."
        )


def _last_factor(losses: Tensor) -> float | None:
    node = losses.grad_fn
    if node is None or node.name() != "MulBackward0":
        return None
    factor = node._saved_other  # type: ignore[attr-defined]
    if not isinstance(factor, Tensor) or factor.dim() != 0 or factor.requires_grad:
        return None
    return float(factor)
