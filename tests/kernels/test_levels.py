"""Which version of the kernels is used, and that a test or a user can choose."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._kernels import levels, library


def chosen(monkeypatch: pytest.MonkeyPatch, value: str | None) -> tuple[str, bool]:
    """The level under this setting of the environment, read afresh, and whether the reference was asked for."""
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(levels.VARIABLE, value)
    levels.read_environment_again()
    try:
        return levels.level(), levels.kernels_are_off()
    finally:
        monkeypatch.undo()
        levels.read_environment_again()


def test_the_fastest_level_is_the_default_and_the_environment_chooses_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = levels.levels()[-1] if levels.levels() else "off"
    assert chosen(monkeypatch, None) == (best, False)
    for level in ("off", *levels.levels()):
        assert chosen(monkeypatch, level) == (level, level == "off")


def test_a_level_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Expected QUIETGRAD_KERNELS to be one of off"):
        chosen(monkeypatch, "fast")


def test_levels_can_be_changed_for_a_while() -> None:
    before = levels.level()
    with levels.use_level("off"):
        assert levels.kernels_are_off()
        assert levels.describe().startswith("torch")
    assert levels.level() == before


@pytest.mark.parametrize("level", ["off", *levels.levels()])
def test_explain_says_what_is_used(level: str) -> None:
    model = nn.Linear(3, 2)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 3)), rate=0.5, steps=2)
    with levels.use_level(level):
        private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
        assert f"kernels: {levels.describe()}" in str(private.explain())
        assert ("torch" in levels.describe()) == (level == "off")
        private.close()


@pytest.mark.skipif(not levels.levels(), reason="the C library was not built")
def test_a_library_of_older_sources_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KERNELS", (*library.KERNELS, "qg_not_built_yet"))
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    levels.read_environment_again()
    try:
        assert library.native() is None
        assert levels.level() == "off"
        assert not levels.kernels_are_off(), "kernels for other devices may still be used"
    finally:
        monkeypatch.undo()
        levels.read_environment_again()


def test_devices_say_which_kernels_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    levels.read_environment_again()
    try:
        assert levels.describe("xpu") == "torch: there are no kernels for xpu"
        assert levels.describe("cuda") in ("Triton", "torch: the package triton is not installed")
        with levels.use_level("off"):
            assert levels.describe("cuda") == "torch (QUIETGRAD_KERNELS=off)"
    finally:
        monkeypatch.undo()
        levels.read_environment_again()
