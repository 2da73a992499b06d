"""Which adapter serves which module, and which modules are served at all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize

from quietgrad._capture.adapters.attention import AttentionAdapter
from quietgrad._capture.adapters.conv import ConvAdapter
from quietgrad._capture.adapters.embedding import EmbeddingAdapter, EmbeddingBagAdapter
from quietgrad._capture.adapters.fallback import FallbackAdapter
from quietgrad._capture.adapters.linear import LinearAdapter, TransposedLinearAdapter
from quietgrad._capture.adapters.norm import GroupNormAdapter, LayerNormAdapter
from quietgrad._capture.adapters.over_time import is_stock_recurrent
from quietgrad._capture.adapters.recurrent import RecurrentAdapter
from quietgrad._capture.call import Adapter, Unit

ADAPTERS: dict[type[nn.Module], type[Adapter]] = {
    nn.Linear: LinearAdapter,
    nn.Conv1d: ConvAdapter,
    nn.Conv2d: ConvAdapter,
    nn.Conv3d: ConvAdapter,
    nn.Embedding: EmbeddingAdapter,
    nn.EmbeddingBag: EmbeddingBagAdapter,
    nn.LayerNorm: LayerNormAdapter,
    nn.RMSNorm: LayerNormAdapter,
    nn.GroupNorm: GroupNormAdapter,
    nn.InstanceNorm1d: GroupNormAdapter,
    nn.InstanceNorm2d: GroupNormAdapter,
    nn.InstanceNorm3d: GroupNormAdapter,
}


def register_adapter(kind: type[nn.Module], adapter: type[Adapter]) -> None:
    """Let an adapter compute the per-sample gradients of a module class.

    It serves modules of this class, and of subclasses that do not override `forward`. Privatizers made later use it.

    Args:
        kind: the module class.
        adapter: computes the gradients of the parameters that `kind` itself owns.

    Raises:
        ValueError: `kind` is not a module class, or `adapter` not an Adapter class.
    """
    if not _is_subclass(kind, nn.Module):
        raise ValueError(
            f"Expected a subclass of nn.Module, got {kind!r}. Pass the class, not a module of it."
        )
    if not _is_subclass(adapter, Adapter):
        raise ValueError(
            f"Expected a subclass of qg.Adapter, got {adapter!r}. Pass the class, not an instance."
        )
    ADAPTERS[kind] = adapter


def _is_subclass(value: object, base: type) -> bool:
    return inspect.isclass(value) and issubclass(value, base)


METHODS = ("forward", "_conv_forward", "__call__")
"""What a subclass may not change if the adapter of its base is to be right."""


def adapter_for(module: nn.Module) -> Adapter:
    """The adapter of the module's kind if it computes what that kind computes, else the fallback."""
    for kind, adapter in ADAPTERS.items():
        if isinstance(module, kind) and is_stock(module, kind) and has_formula(module):
            return adapter()
    if isinstance(module, nn.MultiheadAttention) and module.bias_k is None:
        return AttentionAdapter()
    if isinstance(module, nn.RNNBase):
        return RecurrentAdapter(stock=is_stock_recurrent(module))
    if type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
        return TransposedLinearAdapter()
    return FallbackAdapter()


def has_formula(module: nn.Module) -> bool:
    """Options that an adapter's formula does not cover go to the fallback."""
    if isinstance(module, nn.EmbeddingBag):
        return module.mode in ("sum", "mean")
    if isinstance(module, _InstanceNorm):
        return not module.track_running_stats
    return True


def is_stock(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a (subclass) module still computes exactly what `kind` does: a weight-standardised or weight-normed
    layer does not, and the adapter's gradient would be plainly wrong for it."""
    same = all(getattr(type(module), name, None) is getattr(kind, name, None) for name in METHODS)
    patched = any(name in vars(module) for name in METHODS)
    own = set(module._parameters) <= {"weight", "bias"}
    return (
        same
        and not patched
        and own
        and not module._forward_pre_hooks
        and not parametrize.is_parametrized(module)
    )


def find_units(model: nn.Module, names: dict[int, str]) -> Iterator[Unit]:
    """Every module that owns trained parameters.

    Args:
        names: id of each trained parameter → its name in the model.
    """
    skipped: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in skipped:
            continue
        lent = list(uncalled_children(module))
        skipped.update(inner for lender in lent for inner in lender.modules())
        local = {key: p for key, p in module._parameters.items() if p is not None}
        for lender_name, lender in ((key, child) for key, child in module.named_modules() if child in lent):
            local.update({f"{lender_name}.{key}": p for key, p in lender.named_parameters()})
        owned = {key: names[id(p)] for key, p in local.items() if id(p) in names}
        if owned:
            yield Unit(name, module, adapter_for(module), owned)


def uncalled_children(module: nn.Module) -> Iterator[nn.Module]:
    """Children whose parameters the module uses without calling them."""
    if isinstance(module, nn.MultiheadAttention):
        yield module.out_proj
    if parametrize.is_parametrized(module):
        yield module.parametrizations  # type: ignore[misc]
