"""Every public name says what it is for: classes by an example that runs, functions by what they return and raise."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import quietgrad as qg
from quietgrad._privatizer.explanation import Explanation
from tests.cases.world import losses_of, public_losses, records, small_net

PACKAGES = (
    qg,
    qg.accounting,
    qg.audit,
    qg.distributed,
    qg.federated,
    qg.methods,
    qg.public_losses,
    qg.rules,
    qg.schedules,
)
NEEDS_RANKS = {qg.distributed.AllReduce, qg.distributed.Sharded}
"""Their examples are compiled only."""


def names(package: ModuleType) -> list[str]:
    own = [
        name
        for name, value in vars(package).items()
        if getattr(value, "__module__", None) == package.__name__
    ]
    return list(getattr(package, "__all__", [name for name in own if not name.startswith("_")]))


def public(kind: type) -> list[Any]:
    found = {
        getattr(package, name): None
        for package in PACKAGES
        for name in names(package)
        if _is(package, name, kind)
    }
    return list(found)


def _is(package: ModuleType, name: str, kind: type) -> bool:
    return isinstance(getattr(package, name), kind)


def example(cls: type) -> str:
    """The lines of the docstring's last section."""
    doc = inspect.getdoc(cls) or ""
    assert "\nExample:\n" in doc, f"{cls.__name__} has no example"
    return textwrap.dedent(doc.split("\nExample:\n")[1])


def world(tmp_path: Path) -> dict[str, Any]:
    """What the examples take for granted."""
    model, train_set = small_net(), records()
    batches = qg.PoissonBatches(train_set, rate=0.25, steps=10)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(3.0)
    path = tmp_path / "ledger.jsonl"
    qg.Ledger(path, plan=()).close()
    private = qg.Privatizer(small_net(), mechanism, qg.PoissonBatches(train_set, rate=0.25, steps=10))
    block = qg.DenseGrad(torch.randn(8, 3, 5))
    rows = {name: qg.DenseGrad(torch.randn(8, *p.shape)) for name, p in model.named_parameters()}
    grads = qg.BlockwiseGrads(rows, 8)
    release = qg.StatisticRelease(statistic=qg.Mean(), share=0.01)
    program = qg.Program(training=mechanism, statistics={"mean": release})
    source, reducer = qg.SeededSource(0), qg.distributed.SingleProcess()
    return {
        "qg": qg,
        "torch": torch,
        "F": F,
        "DataLoader": DataLoader,
        "replace": replace,
        "Mean": qg.Mean,
        "model": model,
        "train_set": train_set,
        "batches": batches,
        "mechanism": mechanism,
        "path": path,
        "private": private,
        "public": private.begin_step().public,
        "grads": grads,
        "block": block,
        "losses": losses_of,
        "public_losses": public_losses,
        "source": source,
        "reducer": reducer,
        "total": qg.FlatClip(1.0)(grads, 0),
        "draw": qg.NoiseDraw(std=2.0, divisor=64.0, source=source, reducer=reducer, step=0),
        "gaussian": qg.accounting.GaussianEvent(noise_multiplier=1.1),
        "selection": qg.accounting.MallowsSelection(theta=0.1, group_size=64, kept=16, groups=10),
        "subspace": qg.Subspace(public_losses=public_losses, rank=4),
        "mask": qg.RandomMask(0.5),
        "program": program,
        "server": federated_round(),
        "features": torch.randn(len(train_set), 5),
        "losses_of_members": np.random.default_rng(0).random(40),
        "losses_of_others": np.random.default_rng(1).random(40),
    }


def federated_round() -> qg.federated.FederatedServer:
    """A server in its first round."""
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(3.0)
    server = qg.federated.FederatedServer(small_net(), mechanism, clients=10, rate=0.5, rounds=2)
    server.draw()
    return server


@pytest.mark.parametrize("cls", [*public(type), Explanation], ids=lambda cls: cls.__name__)
def test_every_public_class_has_an_example_that_runs(cls: type, tmp_path: Path) -> None:
    code = compile(example(cls), cls.__name__, "exec")
    if cls not in NEEDS_RANKS:
        exec(code, world(tmp_path))


@pytest.mark.parametrize("function", public(FunctionType), ids=lambda function: function.__name__)
def test_every_public_function_says_what_it_raises(function: FunctionType) -> None:
    doc = inspect.getdoc(function) or ""
    assert doc, f"{function.__name__} has no docstring"
    if _raises(function):
        assert "\nRaises:\n" in doc, function.__name__


def raising(cls: type) -> list[str]:
    """What of a class raises in its own lines: public methods and properties, and the constructor."""
    own = {
        name: getattr(value, "fget", None) or getattr(value, "__func__", value)
        for name, value in vars(cls).items()
    }
    constructors = {"__init__", "__post_init__"}
    return [
        name
        for name, function in own.items()
        if isinstance(function, FunctionType)
        and function.__module__ == cls.__module__
        and function.__name__ == name
        if (not name.startswith("_") or name in constructors) and _raises(function)
    ]


def _raises(function: FunctionType) -> bool:
    written = inspect.unwrap(function)
    if written.__code__.co_filename == "<string>":  # written by dataclass
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(written)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def test_every_public_class_says_what_its_methods_raise() -> None:
    found = [(cls, name) for cls in public(type) for name in raising(cls)]
    assert len(found) > 20
    silent = [
        f"{cls.__name__}.{name}"
        for cls, name in found
        if "Raises:\n" not in (inspect.getdoc(cls if name.startswith("_") else getattr(cls, name)) or "")
    ]
    assert silent == []


NAMES_IT = ("The ", "A ", "An ", "What ", "(", "`")
"""How a first line begins that names what comes back; one that begins with a verb needs `Returns:`."""


def test_every_public_function_says_what_it_returns() -> None:
    of_methods = {getattr(qg.methods, name) for name in names(qg.methods)}
    giving = [f for f in public(FunctionType) if f.__annotations__["return"] not in (None, "None")]
    assert len(giving) > 40
    silent = [
        function.__name__
        for function in giving
        if function not in of_methods  # recipes, which all return a Mechanism
        and "\nReturns:\n" not in (doc := inspect.getdoc(function) or "")
        and not doc.startswith(NAMES_IT)
    ]
    assert silent == []
    assert {f.__annotations__["return"] for f in of_methods if isinstance(f, FunctionType)} == {"Mechanism"}


def test_the_names_stand_in_the_order_of_a_step() -> None:
    order = [
        "PoissonBatches",
        "fix",
        "methods",
        "Mechanism",
        "calibrate",
        "Privatizer",
        "Representation",
        "audit",
    ]
    assert [name for name in qg.__all__ if name in order] == order
