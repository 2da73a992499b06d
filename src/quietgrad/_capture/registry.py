"""Which adapter serves which module, and which modules own trained parameters."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize

from quietgrad._capture.adapter import Adapter
from quietgrad._capture.adapters.attention import AttentionAdapter
from quietgrad._capture.adapters.conv import ConvAdapter
from quietgrad._capture.adapters.embedding import EmbeddingAdapter, EmbeddingBagAdapter
from quietgrad._capture.adapters.fallback import FallbackAdapter
from quietgrad._capture.adapters.linear import LinearAdapter
from quietgrad._capture.adapters.norm import GroupNormAdapter, LayerNormAdapter
from quietgrad._capture.adapters.over_time import is_stock_recurrent
from quietgrad._capture.adapters.recurrent import RecurrentAdapter
from quietgrad._capture.call import Unit
from quietgrad._capture.fsdp import is_fsdp_hook

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


BUILT_IN = dict(ADAPTERS)
"""The adapters of this package; every other entry of `ADAPTERS` was registered by a user."""


def register_adapter(kind: type[nn.Module], adapter: type[Adapter]) -> None:
    """Let an adapter compute the per-sample gradients of a module class.

    It serves modules of this class, and of subclasses that do not override `forward`. Privatizers made later use it.
    A module that computes something else is replayed sample by sample, as without an adapter: a subclass with its own
    `forward`, a parametrised module, one with forward pre-hooks.

    Args:
        kind: the module class.
        adapter: computes the gradients of the parameters that `kind` itself owns, and names them in `parameters`.

    Raises:
        ValueError: `kind` is not a module class, or `adapter` not an Adapter class. Making a Privatizer raises it if
            a module of the class trains a parameter that the adapter does not name.

    Checked by: tests/capture/test_registered_adapters.py
    """
    if not _is_subclass(kind, nn.Module):
        raise ValueError(
            f"Expected a subclass of nn.Module, got {kind!r}. Pass the class, not a module of it."
        )
    if not _is_subclass(adapter, Adapter):
        raise ValueError(
            f"Expected a subclass of qg.Adapter, got {adapter!r}. Pass the class, not an instance."
        )
    names: object = adapter.parameters
    if isinstance(names, str):
        raise ValueError(
            f"Expected a tuple of names in {adapter.__name__}.parameters, got the string {names!r}. Write ({names!r},)."
        )
    ADAPTERS[kind] = adapter


def _is_subclass(value: object, base: type) -> bool:
    return inspect.isclass(value) and issubclass(value, base)


METHODS = ("forward", "_conv_forward", "__call__")
"""What a subclass may not change if the adapter of its base is to be right."""


def adapter_for(module: nn.Module, trained: Collection[str]) -> Adapter:
    """Choose the adapter of the nearest registered class that the module computes the same as.

    Args:
        trained: names of the module's own parameters that are trained.

    Raises:
        ValueError: a user's adapter does not name one of them.
    """
    # From the module's own class to its bases. A user's adapter is taken as it is, after its names were checked. A
    # built-in one only if its formula covers the options of this module; otherwise the search goes on.
    for kind in type(module).__mro__:
        adapter = ADAPTERS.get(kind)
        if adapter is None or not computes_like(module, kind):
            continue
        if BUILT_IN.get(kind) is not adapter:
            check_names(adapter, kind, trained)
            return adapter()
        if has_formula(module, adapter):
            return adapter()
    if isinstance(module, nn.MultiheadAttention) and module.bias_k is None:
        return AttentionAdapter()
    if isinstance(module, nn.RNNBase):
        return RecurrentAdapter(stock=is_stock_recurrent(module))
    if _is_class(module, "transformers.pytorch_utils", "Conv1D"):
        return LinearAdapter(transposed=True)
    if _is_class(module, "torch_geometric.nn.dense.linear", "Linear"):
        return LinearAdapter()
    return FallbackAdapter()


def _is_class(module: nn.Module, package: str, name: str) -> bool:
    """Ask whether a module is of exactly this class, of a package that need not be installed, and unchanged."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == (package, name) and computes_like(module, kind)


def computes_like(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Ask whether a module of a subclass still computes exactly what `kind` does.

    A weight-standardised or weight-normed layer does not: the adapter's gradient would be plainly wrong for it.
    """
    same = all(getattr(type(module), name, None) is getattr(kind, name, None) for name in METHODS)
    patched = any(name in vars(module) for name in METHODS)
    return same and not patched and not _has_own_pre_hooks(module) and not parametrize.is_parametrized(module)


def _has_own_pre_hooks(module: nn.Module) -> bool:
    """Ask whether forward pre-hooks may change what the module computes; those of `fully_shard` do not."""
    return any(not is_fsdp_hook(hook) for hook in module._forward_pre_hooks.values())


def check_names(adapter: type[Adapter], kind: type[nn.Module], trained: Collection[str]) -> None:
    """Refuse a user's adapter that has no gradient for a trained parameter: the slow path would take over unseen."""
    for name in trained:
        if name not in adapter.parameters:
            served = ", ".join(map(repr, adapter.parameters))
            raise ValueError(
                f"{adapter.__name__} is registered for {kind.__name__}, which trains the parameter {name!r}, but has "
                f"gradients for {served} only. Name it in {adapter.__name__}.parameters and return it from pieces, or "
                "freeze it (requires_grad_(False))."
            )


def has_formula(module: nn.Module, adapter: type[Adapter]) -> bool:
    """Ask whether a built-in adapter's formula covers the module's options and parameters."""
    if not set(module._parameters) <= set(adapter.parameters):
        return False
    if isinstance(module, nn.EmbeddingBag):
        return module.mode in ("sum", "mean")
    if isinstance(module, _InstanceNorm):
        return not module.track_running_stats
    return True


def find_units(model: nn.Module, names: dict[int, str]) -> Iterator[Unit]:
    """Find every module that owns trained parameters, and its adapter.

    Args:
        names: id of each trained parameter → its name in the model.
    """
    skipped: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in skipped:
            continue
        own = {key: p for key, p in module._parameters.items() if p is not None}
        # Children that are used but never called run no hooks. Their parameters count as the parent's own, under a
        # dotted name.
        children = list(uncalled_children(module))
        skipped.update(inner for child in children for inner in child.modules())
        borrowed = {
            f"{path}.{key}": p
            for path, child in module.named_modules()
            if child in children
            for key, p in child.named_parameters()
        }
        trained = {key: names[id(p)] for key, p in {**own, **borrowed}.items() if id(p) in names}
        if trained:
            yield Unit(name, module, adapter_for(module, [key for key in trained if key in own]), trained)


def uncalled_children(module: nn.Module) -> Iterator[nn.Module]:
    """Find the children whose parameters the module uses without calling them."""
    if isinstance(module, nn.MultiheadAttention):
        yield module.out_proj
    if parametrize.is_parametrized(module):
        yield module.parametrizations  # type: ignore[misc]
