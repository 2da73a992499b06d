"""Models under `torch.distributed.fsdp.fully_shard`: each parameter in both of its forms.

Between forwards a module holds its *shard*: a DTensor with some rows of the parameter, which the optimizer steps. In a
forward it holds the *leaf*: the whole parameter, gathered from all ranks, which the autograd graph refers to. Both are
the same two objects in every step; only the memory of the leaf comes and goes.

Everything that is known of FSDP's inside is in this file.

Checked by: tests/distributed/test_sharded.py, tests/test_private_torch.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from quietgrad._capture.layout import BatchAxis, BatchLayout
from quietgrad._capture.node_rules.lookup import register_rule
from quietgrad._capture.node_rules.visit import Visit


def is_fsdp(module: nn.Module) -> bool:
    """Ask whether `fully_shard` was applied to the module, without importing FSDP for those who do not use it."""
    return _has_fsdp(type(module).__mro__)


@lru_cache(maxsize=1024)
def _has_fsdp(bases: tuple[type, ...]) -> bool:
    # `fully_shard` gives a module another class, so the answer for a class never changes.
    return any(base.__name__ == "FSDPModule" for base in bases)


def is_fsdp_hook(hook: object) -> bool:
    """Ask whether a forward hook is FSDP's: it gathers parameters and leaves what a module computes as it is."""
    return type(getattr(hook, "__self__", None)).__name__ == "FSDPState"


class ShardedParameters:
    """The parameters of a model under `fully_shard`.

    Args:
        model: sharded as a whole, on one group of ranks.

    Raises:
        ValueError: a trained parameter is not sharded by rows over one group of ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        for module in self._modules():
            module.reshard()  # a forward without a backward leaves the root's parameters gathered
        self._held = {id(held.sharded_param): held for _, held in self._groups()}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                _check_placement(name, parameter, managed=id(parameter) in self._held)

    def describe(self) -> dict[str, Any]:
        """Return what must be the same on all ranks: which parameters are gathered together."""
        names = {id(p): name for name, p in self._model.named_parameters()}
        groups: dict[str, list[str]] = {}
        for place, held in self._groups():
            name = names.get(id(held.sharded_param), "?")
            groups.setdefault(place or "the model", []).append(f"{name} {list(held.sharded_param.shape)}")
        return {"wrap policy": groups}

    def make_leaves(self) -> None:
        """Gather each module's parameters once, which makes the leaves. All ranks do so together."""
        model: Any = self._model
        model._get_fsdp_state()._lazy_init()
        for module in self._modules():
            module.unshard()
            module.reshard()
        _register_rule()

    def leaves(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the leaf of each shard."""
        return {name: self._held[id(p)]._unsharded_param for name, p in parameters.items()}

    def _modules(self) -> Iterator[Any]:
        return (module for module in self._model.modules() if is_fsdp(module))

    def _groups(self) -> Iterator[tuple[str, Any]]:
        """Yield every parameter that FSDP holds, with the module to which `fully_shard` was applied."""
        seen = set()
        for name, module in self._model.named_modules():
            for held in _held_by(module):
                if id(held) not in seen:
                    seen.add(id(held))
                    yield name, held


def _held_by(module: Any) -> list[Any]:
    """Return FSDP's records of the parameters that are gathered with a module."""
    if not is_fsdp(module):
        return []
    return [held for group in module._get_fsdp_state()._fsdp_param_groups for held in group.fsdp_params]


def shards_in(modules: Iterable[nn.Module]) -> dict[tuple[int, str], Tensor]:
    """Return the memory of each shard, by the module that holds the parameter and its name there.

    What a forward writes into a leaf is gone with the leaf. Only shards last.
    """
    found: dict[tuple[int, str], Tensor] = {}
    for module in modules:
        for held in _held_by(module):
            about, local = held._module_info, held.sharded_param._local_tensor
            found[id(about.module), about.param_name] = local
            for other, name in zip(about.shared_modules, about.shared_param_names, strict=True):
                found[id(other), name] = local
    return found


def shard_like(parameter: Tensor, rows: Tensor) -> Tensor:
    """Return this rank's rows as the DTensor that `parameter.grad` may be."""
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    assert rows.shape == parameter._local_tensor.shape
    return DTensor.from_local(
        rows,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _check_placement(name: str, parameter: nn.Parameter, *, managed: bool) -> None:
    from torch.distributed.tensor import DTensor, Shard

    if not managed or not isinstance(parameter, DTensor):
        raise ValueError(
            f"Parameter {name!r} is not sharded: its sum would be whole on every rank. Apply fully_shard to the model "
            "as a whole too, without ignored_params."
        )
    if parameter.device_mesh.ndim != 1 or tuple(parameter.placements) != (Shard(0),):
        raise ValueError(
            f"Parameter {name!r} has the placements {tuple(parameter.placements)} on a mesh of "
            f"{parameter.device_mesh.ndim} dimensions. Only shards of rows over one group of ranks are supported: use "
            "a mesh of one dimension, without tensor parallel plan, replicas or shard_placement_fn."
        )


def _register_rule() -> None:
    """Say what FSDP's node on the inputs of a sharded module does to gradients: it passes them on."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction

    register_rule(RegisterPostBackwardFunction)(_pass_on)


def _pass_on(visit: Visit) -> list[BatchLayout]:
    # With several inputs each gradient goes to its own. Where all have the layout of this one, that changes nothing;
    # another layout disagrees, and is then unknown.
    return [visit.layout if shape == visit.shape else BatchAxis.UNKNOWN for shape in visit.input_shapes]
