"""The list of a model's modules and trained parameters is made again whenever torch would give another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from quietgrad._capture.model_parts import ModelParts


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh(), nn.Linear(2, 2)))


def renamed(made: nn.Sequential) -> None:
    made[1]._modules["other"] = made[1]._modules.pop("1")


CHANGES: dict[str, Callable[[Any], object]] = {
    "a module added": lambda m: m[1].append(nn.Linear(2, 2)),
    "a module exchanged": lambda m: m.__setitem__(0, nn.BatchNorm1d(2)),
    "a module renamed": renamed,
    "all modules of one": lambda m: setattr(m[1], "_modules", {"0": nn.Linear(2, 2)}),
    "a parameter exchanged": lambda m: setattr(m[1][1], "weight", nn.Parameter(torch.ones(2, 2))),
    "a parameter added": lambda m: m[0].register_parameter("scale", nn.Parameter(torch.ones(2))),
    "a parameter removed": lambda m: m[0].register_parameter("bias", None),
    "a parameter tied": lambda m: setattr(m[1][1], "weight", m[0].weight),
    "a parameter frozen": lambda m: m[0].weight.requires_grad_(False),
}


def as_torch_says(parts: ModelParts, made: nn.Module) -> bool:
    modules, trained = parts.modules(), parts.trained()
    expected = {name: p for name, p in made.named_parameters() if p.requires_grad}
    return (
        [(name, id(part)) for name, part in modules] == [(n, id(part)) for n, part in made.named_modules()]
        and trained.keys() == expected.keys()
        and all(trained[name] is p for name, p in expected.items())
    )


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_exchanged_is_found(change: str) -> None:
    made = model()
    parts = ModelParts(made)
    assert as_torch_says(parts, made)
    assert parts.modules() is parts.modules(), "an unchanged model is walked through once"
    CHANGES[change](made)
    assert as_torch_says(parts, made)


def test_a_module_that_lists_its_own_parameters_is_asked_every_time() -> None:
    class Choosy(nn.Linear):
        hidden = False

        def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
            return iter(()) if self.hidden else super().named_parameters(*args, **kwargs)

    made = Choosy(2, 2)
    parts = ModelParts(made)
    assert len(parts.trained()) == 2
    made.hidden = True
    assert not parts.trained()
