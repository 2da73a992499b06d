"""Every private part of torch that the package uses: each works on the installed torch, and none is unlisted.

A new torch may drop one. The failing test then names it and says what to do instead. The upper bound of torch in
pyproject.toml is raised after these tests pass on the new version.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scripts.imports import modules
from torch import nn

LEAF = torch.ones(2, 3, requires_grad=True)


def counts_changes() -> bool:
    x = torch.ones(2)
    before = x._version
    x.add_(1)
    return x._version == before + 1


def knows_its_base() -> bool:
    x = torch.ones(4)
    return x[:2]._base is x and x._base is None


def saves_arguments() -> bool:
    node: Any = (LEAF.unsqueeze(1) + LEAF.sum(0)).grad_fn
    return node._saved_alpha == 1 and node.next_functions[0][0]._saved_dim == 1


def describes_its_inputs() -> bool:
    node: Any = (LEAF * 2).grad_fn
    (about,) = node._input_metadata
    return tuple(about.shape) == (2, 3) and about.dtype == torch.float32


def saves_the_statistics_of_a_norm() -> bool:
    node: Any = nn.functional.layer_norm(LEAF, (3,)).grad_fn
    return len(node._saved_result1) == len(node._saved_result2) == 2


def makes_nodes_that_raise() -> bool:
    read: Any = torch._C._functions.DelayedError("never run", 1)(LEAF)
    return read.grad_fn.next_functions[0][0].variable is LEAF


def sees_saved_tensor_hooks() -> bool:
    from torch._C._autograd import _top_saved_tensors_default_hooks

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        inside: Any = _top_saved_tensors_default_hooks(True)
    outside: Any = _top_saved_tensors_default_hooks(True)
    return inside is not None and outside is None


def sees_functorch() -> bool:
    from torch._C._functorch import is_functorch_wrapped_tensor

    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_functorch_wrapped_tensor(x))
        return x

    torch.vmap(look)(torch.ones(2))
    return seen == [True] and not is_functorch_wrapped_tensor(LEAF)


def tells_the_current_mode() -> bool:
    class Mode(torch.overrides.TorchFunctionMode):
        pass

    with Mode() as mode:
        return torch.overrides._get_current_function_mode() is mode


def averages_lists() -> bool:
    averaged, current = [torch.zeros(2)], [torch.ones(2)]
    torch._foreach_lerp_(averaged, current, 0.25)
    return averaged[0].tolist() == [0.25, 0.25]


def runs_recurrent_layers() -> bool:
    return all(callable(getattr(torch._VF, name)) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def keeps_tables_of_parts() -> bool:
    module = nn.BatchNorm1d(3)
    module.register_forward_pre_hook(lambda *_: None)
    parts: list[Any] = [module._parameters, module._buffers, module._modules, module._forward_pre_hooks]
    return [len(part) for part in parts] == [2, 3, 0, 1]


def names_recurrent_weights() -> bool:
    names = ["weight_ih_l0", "weight_hh_l0"]
    layer = nn.LSTM(2, 2)
    return layer._flat_weights_names[:2] == names and layer._all_weights[0][:2] == names


def visits_members() -> bool:
    found = nn.Linear(2, 2)._named_members(lambda module: module._parameters.items())
    return [name for name, _ in found] == ["weight", "bias"]


def remembers_that_it_is_compiled() -> bool:
    layer = nn.Linear(2, 2)
    before = layer._compiled_call_impl
    layer.compile()
    return before is None and layer._compiled_call_impl is not None


def takes_trees_apart() -> bool:
    leaves, shape = torch.utils._pytree.tree_flatten({"a": [1, 2], "b": 3})
    return leaves == [1, 2, 3] and torch.utils._pytree.tree_unflatten(leaves, shape) == {"a": [1, 2], "b": 3}


def keeps_its_vectors_in_buffers() -> bool:
    layer: Any = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    return isinstance(layer.parametrizations.weight[0], nn.utils.parametrizations._SpectralNorm)


def knows_both_forms_of_a_parameter() -> bool:
    """What `_capture/fsdp.py` reads of FSDP, as far as it shows without a process group."""
    import inspect

    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group, _fsdp_state
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction

    held, state = inspect.getsource(_fsdp_param.FSDPParam), inspect.getsource(_fsdp_state.FSDPState)
    names = ("_unsharded_param", "sharded_param", "_module_info")
    about = ("module", "param_name", "shared_modules", "shared_param_names")
    fields = vars(_fsdp_param.ParamModuleInfo)["__dataclass_fields__"]
    return (
        all(name in held for name in names)
        and all(name in fields for name in about)
        and "_fsdp_param_groups" in state
        and "def _lazy_init" in state
        and "fsdp_params" in inspect.getsource(_fsdp_param_group)
        and issubclass(RegisterPostBackwardFunction, torch.autograd.Function)
    )


def computes_shapes_alone() -> bool:
    mode = torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        return nn.Linear(3, 2)(mode.from_tensor(torch.ones(4, 3))).shape == (4, 2)


def keeps_what_a_compiled_backward_saved() -> bool:
    """Whether a compiled backward runs twice: `bw_donated_idxs` of its function's metadata is set for that."""
    config: Any = torch._functorch.config
    with config.patch(donated_buffer=False):
        x = torch.ones(3, requires_grad=True)
        y = torch.compile(lambda t: (t.sin() * t).sum(), backend="aot_eager")(x)
    about: Any = type(y.grad_fn)._forward_cls.metadata
    torch._dynamo.reset()
    return hasattr(about, "bw_donated_idxs")


USED: dict[str, tuple[Callable[[], bool], str]] = {
    "_version": (counts_changes, "compare the bytes of tensors: slower, sees the same changes"),
    "_base": (knows_its_base, "compare untyped_storage().data_ptr()"),
    "_saved_*": (saves_arguments, "drop the node's rule in _capture/node_rules.py: its gradient is probed"),
    "_input_metadata": (describes_its_inputs, "record shapes by a hook on the node"),
    "_saved_result1": (saves_the_statistics_of_a_norm, "recompute mean and deviation in adapters/norm.py"),
    "_C._FunctionBase": (
        lambda: issubclass(torch.autograd.Function, torch._C._FunctionBase),
        "ask isinstance(node, torch.autograd.function.BackwardCFunction)",
    ),
    "_C._functions.DelayedError": (
        makes_nodes_that_raise,
        "reach the accumulating node through p.view_as(p)",
    ),
    "_C._autograd._top_saved_tensors_default_hooks": (
        sees_saved_tensor_hooks,
        "always recompute instead of reading what a node has saved",
    ),
    "_C._functorch.is_functorch_wrapped_tensor": (sees_functorch, "always take the general fallback"),
    "overrides._get_current_function_mode": (tells_the_current_mode, "keep a stack of entered modes"),
    "_foreach_lerp_": (averages_lists, "lerp_ in a loop"),
    "_VF": (runs_recurrent_layers, "torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu"),
    "_parameters": (keeps_tables_of_parts, "named_parameters(recurse=False) and its like"),
    "_flat_weights_names": (names_recurrent_weights, "build the names from num_layers and bidirectional"),
    "_named_members": (visits_members, "always walk with named_parameters() in _capture"),
    "_compiled_call_impl": (
        remembers_that_it_is_compiled,
        "refuse modules whose __call__ is not nn.Module's",
    ),
    "utils._pytree": (takes_trees_apart, "torch.utils.pytree, or the package optree"),
    "_subclasses.fake_tensor.FakeTensorMode": (
        computes_shapes_alone,
        "run the forward once without gradients in _capture/compiled.py",
    ),
    "_functorch.config": (
        keeps_what_a_compiled_backward_saved,
        "find how to compile backwards that run several times in _capture/compiled.py, or refuse compile=",
    ),
    "nn.utils.parametrizations._SpectralNorm": (keeps_its_vectors_in_buffers, "compare the class's name"),
    "nn.modules.batchnorm._BatchNorm": (
        lambda: issubclass(nn.BatchNorm1d, nn.modules.batchnorm._BatchNorm),
        "list BatchNorm1d, 2d, 3d and SyncBatchNorm",
    ),
    "distributed.fsdp._fully_shard": (
        knows_both_forms_of_a_parameter,
        "find the gathered parameters in another way in _capture/fsdp.py, or refuse fully_shard in validation.py",
    ),
    "nn.modules.instancenorm._InstanceNorm": (
        lambda: issubclass(nn.InstanceNorm1d, nn.modules.instancenorm._InstanceNorm),
        "list InstanceNorm1d, 2d and 3d",
    ),
}
"""What is used, a check that it still does what it did, and the remedy when it does not."""

CHECKED_WITH_THEM = {"_buffers", "_modules", "_forward_pre_hooks", "_all_weights"}


@pytest.mark.parametrize("name", USED)
def test_it_works_on_the_installed_torch(name: str) -> None:
    works, remedy = USED[name]
    message = f"torch {torch.__version__} has changed {name}. Instead: {remedy}."
    try:
        assert works(), message
    except (AttributeError, ImportError, TypeError) as error:
        pytest.fail(f"{message} ({error})")


OF_OBJECTS = {name for cls in (torch.Tensor, nn.Module) for name in dir(cls)} | set(vars(nn.LSTM(1, 1)))
"""What tensors and layers have."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> Iterator[str]:
    """What a module imports from torch's private modules, or looks up on torch, tensors, nodes and layers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            for alias in node.names:
                yield f"{node.module}.{alias.name}".removeprefix("torch.")
        elif isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            if re.fullmatch(r"torch(\.\w+)+", written):
                yield written.removeprefix("torch.")
            elif written not in (f"self.{node.attr}", f"cls.{node.attr}") and is_of_torch(node.attr):
                yield node.attr


def is_of_torch(name: str) -> bool:
    return name in OF_OBJECTS or name.startswith("_saved_") or name == "_input_metadata"


def is_listed(name: str) -> bool:
    known = {*USED, *CHECKED_WITH_THEM}
    return any(name == one or name.startswith(f"{one}.") for one in known) or name.startswith("_saved_")


def test_nothing_private_is_used_that_is_not_listed() -> None:
    found = {
        name
        for file in modules().values()
        for name in private_names(ast.parse(file.read_text()))
        if any(map(is_private, name.split(".")))
    }
    assert len(found) > 10
    whole = {name for name in found if not any(other.startswith(f"{name}.") for other in found)}
    assert sorted(name for name in whole if not is_listed(name)) == []
