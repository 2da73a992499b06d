"""Which version of the kernels is used, and that a test or a user can choose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.kernels import library


def chosen(**environment: str) -> subprocess.CompletedProcess[str]:
    code = "from quietgrad.kernels import library; print(library.level())"
    return subprocess.run(
        [sys.executable, "-c", code], env={**environ(), **environment}, capture_output=True, text=True
    )


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != library.VARIABLE}


def test_the_fastest_level_is_the_default_and_the_environment_chooses_another() -> None:
    best = library.levels()[-1] if library.levels() else "off"
    assert chosen().stdout.strip() == best
    for level in ("off", *library.levels()):
        assert chosen(QUIETGRAD_KERNELS=level).stdout.strip() == level


def test_a_level_that_is_not_there_is_refused_by_name() -> None:
    failed = chosen(QUIETGRAD_KERNELS="fast")
    assert failed.returncode != 0
    assert "Expected QUIETGRAD_KERNELS to be one of off" in failed.stderr


def test_levels_can_be_changed_for_a_while() -> None:
    before = library.level()
    with library.at("off"):
        assert library.in_use() is None
        assert library.described().startswith("torch")
    assert library.level() == before


@pytest.mark.parametrize("level", ["off", *library.levels()])
def test_explain_says_what_is_used(level: str) -> None:
    model = nn.Linear(3, 2)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 3)), rate=0.5, steps=2)
    with library.at(level):
        private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
        assert f"kernels: {library.described()}" in str(private.explain())
        assert ("torch" in library.described()) == (level == "off")
        private.close()
