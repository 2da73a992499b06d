"""Law 10: after the Privatizer is closed the model is exactly what it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import SmallNet, privatizer, run, small_net


def attributes(model: nn.Module) -> dict[str, set[str]]:
    return {name: set(vars(module)) for name, module in model.named_modules()}


def hooks(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@pytest.mark.parametrize("case", BY_FAMILY)
def test_nothing_is_left_on_the_model(case: MethodCase) -> None:
    model = small_net()
    before, parameters = attributes(model), {name: set(vars(p)) for name, p in model.named_parameters()}
    plain = copy.deepcopy(model)
    with privatizer(case.build(0.5).with_noise(1.0), [[0, 1], [2]], model=model) as (private, batches, _):
        assert hooks(model) > 0
        run(private, batches, model, lr=0.1)
    assert hooks(model) == 0
    assert attributes(model) == before
    assert {name: set(vars(p)) for name, p in model.named_parameters()} == parameters
    assert type(model) is SmallNet
    plain.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(plain(x), model(x))
    assert not torch.equal(model.get_parameter("head.weight"), small_net().head.weight), (
        "training changed nothing"
    )
